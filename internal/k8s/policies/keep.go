package policies

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/policy"
)

// diskCache holds a copy of each policy on disk as it was observed last, a file each, for an agent
// that starts while the API server is away. Without a directory it holds nothing. It is for one
// goroutine at a time.
//
// A file has a line with the version of this format, a checksum and the kind, and then the object
// in JSON.
type diskCache struct {
	dir string
	// sums are those of what is on disk, so that only what changes is written.
	sums map[policy.Owner]sum
}

type sum [8]byte

const (
	keptFormat = "hawser-policy-1"
	keptSuffix = ".policy"
	// keptMax is more than what an API server takes for an object.
	keptMax = 8 << 20
)

// kept is a policy as it was observed last.
type kept struct {
	kind   string
	key    k8s.Key
	rules  []*policy.Rule
	fault  error // nil if the rules are all of it
	loaded time.Time
}

func newDiskCache(dir string) *diskCache { return &diskCache{dir: dir, sums: map[policy.Owner]sum{}} }

// path is where the copy of an owner's object is. Names of objects are longer than those of files
// may be.
func (k *diskCache) path(owner policy.Owner) string {
	h := sha256.Sum256([]byte(owner))
	return filepath.Join(k.dir, hex.EncodeToString(h[:16])+keptSuffix)
}

func keptSum(kind string, object []byte) [sha256.Size]byte {
	return sha256.Sum256(append([]byte(kind+"\n"), object...))
}

// put stores an object, atomically, unless it is there already.
func (k *diskCache) put(owner policy.Owner, kind string, object []byte) error {
	if k.dir == "" {
		return nil
	}
	full := keptSum(kind, object)
	short := sum(full[:8])
	if have, ok := k.sums[owner]; ok && have == short {
		return nil
	}
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return err
	}
	text := append(fmt.Appendf(nil, "%s %x %s\n", keptFormat, full, kind), object...)
	if err := atomicfile.Write(k.path(owner), text, 0o600, atomicfile.Process); err != nil {
		return err
	}
	k.sums[owner] = short
	return nil
}

// drop removes an owner's copy.
func (k *diskCache) drop(owner policy.Owner) error {
	if k.dir == "" {
		return nil
	}
	delete(k.sums, owner)
	if err := os.Remove(k.path(owner)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// load reads all copies. One that is damaged, or that this agent does not accept, is logged and
// removed.
func (k *diskCache) load(log *slog.Logger) map[policy.Owner]kept {
	out := map[policy.Owner]kept{}
	if k.dir == "" {
		return out
	}
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			log.Warn("cannot read the copies of policies of before", "directory", k.dir, "error", err)
		}
		return out
	}
	for _, e := range entries {
		path := filepath.Join(k.dir, e.Name())
		if !strings.HasSuffix(e.Name(), keptSuffix) {
			_ = os.Remove(path) // half of a copy, of an agent that was killed
			continue
		}
		text, at, err := readKept(path)
		var p kept
		var object []byte
		if err == nil {
			p, object, err = parseKept(text)
		}
		owner := ownerOf(p.kind, p.key)
		if err == nil && k.path(owner) != path {
			err = fmt.Errorf("is the copy of %s", owner)
		}
		if err != nil {
			log.Warn("the copy of a policy of before cannot be used", "file", path, "error", err)
			_ = os.Remove(path)
			continue
		}
		full := keptSum(p.kind, object)
		p.loaded, k.sums[owner] = at, sum(full[:8])
		out[owner] = p
	}
	return out
}

func readKept(path string) (text []byte, written time.Time, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, written, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, written, err
	}
	text, err = io.ReadAll(io.LimitReader(f, keptMax+1))
	if err == nil && len(text) > keptMax {
		err = errors.New("is too large")
	}
	return text, st.ModTime(), err
}

// parseKept reads the content of a file.
func parseKept(text []byte) (p kept, object []byte, err error) {
	head, object, ok := bytes.Cut(text, []byte("\n"))
	fields := strings.Fields(string(head))
	if !ok || len(fields) != 3 || fields[0] != keptFormat {
		return p, nil, fmt.Errorf("is not of the format %s", keptFormat)
	}
	p.kind = fields[2]
	if want := keptSum(p.kind, object); fields[1] != hex.EncodeToString(want[:]) {
		return p, nil, errors.New("is damaged: its checksum is another")
	}
	if p.kind == KindKubernetes {
		var o networkingv1.NetworkPolicy
		if err := json.Unmarshal(object, &o); err != nil {
			return p, nil, err
		}
		p.key = k8s.KeyOf(&o)
		p.rules, p.fault = policy.ParseNetworkPolicy(&o)
		return p, object, p.check()
	}
	r := &raw{}
	if err := json.Unmarshal(object, r); err != nil {
		return p, nil, err
	}
	p.key = k8s.KeyOf(r)
	p.rules, p.fault = r.parse(p.kind)
	return p, object, p.check()
}

// check reports what is wrong with a copy of which nothing can be enforced.
func (p *kept) check() error {
	if p.key.Name == "" {
		return errors.New("has no name")
	}
	if len(p.rules) == 0 {
		return cmp.Or(p.fault, errors.New("has no rules"))
	}
	return nil
}

// Recall reads the copies of policies that an agent before has kept and returns their rules, sorted
// by owner, as what was in force last. It is to be called once, before Run. Those that Run then
// observes to be gone are taken away in its first batch.
func (p *Policies) Recall() []policy.Change {
	found := p.diskCache.load(p.log)
	p.mu.Lock()
	defer p.mu.Unlock()
	for owner, old := range found {
		p.kept[owner] = old.rules
		p.objects[owner] = &Status{
			Owner: owner, Kind: old.kind, Namespace: old.key.Namespace, Name: old.key.Name,
			InForce: true, Rules: len(old.rules), Loaded: old.loaded, Err: old.fault,
		}
		if old.fault != nil {
			p.objects[owner].Failed, p.objects[owner].Loaded = old.loaded, time.Time{}
		}
	}
	return sortedChanges(p.kept)
}

// keep stores an object.
func (p *Policies) keep(owner policy.Owner, kind string, object func() ([]byte, error)) {
	if p.cfg.Keep == "" {
		return
	}
	p.keeping.Lock()
	defer p.keeping.Unlock()
	text, err := object()
	if err == nil {
		err = p.diskCache.put(owner, kind, text)
	}
	if err != nil {
		p.log.Warn("a policy cannot be kept for a restart", "policy", owner, "error", err)
	}
}

// forget removes the copy of an object that is gone.
func (p *Policies) forget(owner policy.Owner) {
	p.keeping.Lock()
	defer p.keeping.Unlock()
	if err := p.diskCache.drop(owner); err != nil {
		p.log.Warn("the copy of a policy that is gone cannot be removed", "policy", owner, "error", err)
	}
}

// dropStale takes away what was recalled and is not in Kubernetes any more.
func (p *Policies) dropStale() {
	p.mu.Lock()
	var gone []policy.Owner
	for owner := range p.kept {
		gone = append(gone, owner)
		delete(p.objects, owner)
		p.note(owner, nil)
	}
	p.kept = nil
	p.mu.Unlock()
	for _, owner := range gone {
		p.log.Info("a policy of before is gone", "policy", owner)
		p.forget(owner)
	}
}

package identities

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-net/hawser/pkg/allocator"
)

// SaltNamespace is the namespace whose uid is the salt of a cluster's sequences: every cluster has
// one of its own, every writer may read it, and clients confined to other namespaces may not.
const SaltNamespace = metav1.NamespaceSystem

// Salt is the salt of a cluster's sequences. It is read once. Its method may be called from many
// goroutines.
type Salt struct {
	mu   sync.Mutex
	text string
}

// Get returns the salt. read returns the uid of [SaltNamespace], from the server.
func (s *Salt) Get(ctx context.Context, read func(context.Context) (types.UID, error)) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.text == "" {
		uid, err := read(ctx)
		if err == nil && uid == "" {
			err = errors.New("it has no uid")
		}
		if err != nil {
			return "", fmt.Errorf("read namespace %s, whose uid determines the order in which identity IDs are tried: %w", SaltNamespace, err)
		}
		s.text = string(uid)
	}
	return s.text, nil
}

// Sequence yields all IDs from first to last in the order in which every writer tries them for a
// key: it begins at a hash of the canonical string and goes on in steps of a second hash. The salt
// is the cluster's, so that a client that does not know it cannot choose labels for an ID. Writers
// that do not agree on it, such as older ones, sometimes make two IDs for a key, of which the
// oldest counts. first must be above 0 and not above last.
func Sequence(salt, canonical string, first, last allocator.ID) iter.Seq[allocator.ID] {
	mac := hmac.New(sha256.New, []byte(salt))
	mac.Write([]byte(canonical))
	sum := mac.Sum(nil)
	size := uint64(last-first) + 1
	at, step := binary.BigEndian.Uint64(sum[:8]), binary.BigEndian.Uint64(sum[8:16])
	if size != 0 { // all IDs there are
		at, step = at%size, step%size
		for step == 0 || divisor(step, size) != 1 { // else some IDs would never come
			step = step%size + 1
		}
	} else {
		step |= 1
	}
	return func(yield func(allocator.ID) bool) {
		at := at
		for n := uint64(0); ; {
			if !yield(first + allocator.ID(at)) {
				return
			}
			at += step // the range is small or the sum wraps as it should
			if size != 0 {
				at %= size
			}
			if n++; n == size {
				return
			}
		}
	}
}

// divisor returns the greatest common divisor of two numbers.
func divisor(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

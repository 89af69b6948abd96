package cni

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/deletequeue"
)

// unreleased is the directory of attachments whose endpoints GC deletes, until the IPAM plugin has
// freed their addresses: an endpoint that is gone is in no list any more, and the plugin may fail,
// or this process be killed, between the two. There is a file for each. They need not survive the
// machine: what an IPAM plugin gave before is the runtime's to clean up then.
type unreleased struct{ dir, network string }

// note is the content of a file: an attachment, and the network whose IPAM plugin is to free its
// addresses. One without a network is any's.
type note struct {
	attachment
	Network string `json:"network,omitempty"`
}

func unreleasedDir(agent *client.Client) string { return deletequeue.Unreleased(queueDir(agent)) }

func (u unreleased) file(a attachment) string {
	sum := sha256.Sum256([]byte(a.ContainerID + ":" + a.IfName))
	return filepath.Join(u.dir, hex.EncodeToString(sum[:])+".json")
}

// add notes an attachment.
func (u unreleased) add(a attachment) error {
	data, err := json.Marshal(note{a, u.network})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(u.dir, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(u.file(a), data, 0o600, atomicfile.Process)
}

// remove forgets an attachment.
func (u unreleased) remove(a attachment) error {
	if err := os.Remove(u.file(a)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// list returns all that are noted of the network. Files that are none of its own are an error, and
// left alone.
func (u unreleased) list() (out []attachment, err error) {
	files, err := filepath.Glob(filepath.Join(u.dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, f := range files {
		var n note
		data, err := os.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another GC
		}
		if err == nil {
			err = json.Unmarshal(data, &n)
		}
		if err == nil && f != u.file(n.attachment) {
			err = errors.New("it names another attachment than its name")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w; remove it", f, err))
			continue
		}
		if n.Network == "" || n.Network == u.network {
			out = append(out, n.attachment)
		}
	}
	return out, errors.Join(errs...)
}

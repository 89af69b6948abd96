package clustermesh

import (
	"errors"
	"fmt"
)

// maxSpace bounds the values of one kind that are kept of one cluster, in bytes: what is read of
// them takes about as much memory. 65,280 identities with 1 KiB of labels each fit.
const maxSpace = 64 << 20

// Bounds of the values of one cluster's addresses: of each, of its named ports, and of all values
// together in bytes. A million of 300 bytes each fit.
const (
	maxAddress       = 8 << 10
	maxAddressPorts  = 128
	maxAddressesSize = 288 << 20
)

// errFull is in the errors of keys that are refused for lack of room only.
var errFull = errors.New("there is no room for it")

func full(most int, of string) error {
	return fmt.Errorf("the cluster has more than %d %s: %w", most, of, errFull)
}

// space is how many bytes the values of one kind have that are kept, by key.
type space struct {
	sizes map[string]int
	used  int
}

func newSpace() *space { return &space{sizes: map[string]int{}} }

// take replaces the value of a key. If there is no room for the new one, the key keeps what it has,
// and take returns an error.
func (s *space) take(key string, size int) error {
	used := s.used - s.sizes[key] + size
	if used > maxSpace && size > s.sizes[key] {
		return full(maxSpace>>20, "MiB of such keys")
	}
	s.sizes[key], s.used = size, used
	return nil
}

// release forgets a key.
func (s *space) release(key string) {
	s.used -= s.sizes[key]
	delete(s.sizes, key)
}

package allocator

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ID is the number that a key is given.
type ID uint64

// NoID is no ID: 0 is never given out.
const NoID ID = 0

// String returns the ID in decimal.
func (id ID) String() string { return strconv.FormatUint(uint64(id), 10) }

// ParseID reads a decimal ID as it stands in the store. NoID is not one.
func ParseID(s string) (ID, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 || s[0] == '0' || s[0] == '+' {
		return NoID, fmt.Errorf("%.40q is not a number above 0", s)
	}
	return ID(n), nil
}

var (
	// ErrExhausted means that every ID of the range is taken. The error that wraps it names the
	// range.
	ErrExhausted = errors.New("no ID is free")
	// ErrUnassigned means that a key has no ID, and that this node makes none: see [ReadOnly].
	ErrUnassigned = errors.New("no ID has been assigned")
	// ErrIdentityNonExistent means that the store has no key for an ID.
	ErrIdentityNonExistent = errors.New("identity does not exist")
	// ErrUnreadable means that what the store has for an ID is no key. The ID is taken all the
	// same.
	ErrUnreadable = errors.New("the store has no readable key for the ID")
	// ErrNotInUse means that a key was released more often than it was allocated on this node.
	ErrNotInUse = errors.New("key is not in use on this node")
	// ErrNotRunning means that Run, which follows the store, has not been called.
	ErrNotRunning = errors.New("Run is not running, so nothing is known of the store")
	// ErrClosed means that the allocator has been closed.
	ErrClosed = errors.New("allocator is closed")
)

// ConflictError reports that a key that this node uses under one ID has another in the store,
// or that its ID belongs to another key.
type ConflictError struct {
	Key string
	// Held is the ID that this node uses.
	Held ID
	// InForce is the ID that the store has for the key; NoID if it has none.
	InForce ID
	// Owner is the key that the store has for Held, if it is not Key.
	Owner string
	// Quarantined means that Owner has Held no more, and that no other key is given it yet. Owner
	// may be "" then, which is not known.
	Quarantined bool
	// Revision is that of the change by which the store gave Held to Owner, 0 if it is not known.
	Revision int64
}

// Error implements error.
func (e *ConflictError) Error() string {
	if e.Quarantined {
		return fmt.Sprintf("ID %s of key %q is in quarantine after key %q", e.Held, e.Key, e.Owner)
	}
	if e.Owner != "" {
		return fmt.Sprintf("ID %s of key %q now belongs to key %q", e.Held, e.Key, e.Owner)
	}
	return fmt.Sprintf("key %q is used here as %s, but is in force as %s", e.Key, e.Held, e.InForce)
}

// AllocatorKey is a key that can be given an ID. Its canonical string decides: two keys are the
// same if their GetKey is.
type AllocatorKey interface {
	fmt.Stringer

	// GetKey returns the canonical string. It must not be empty.
	GetKey() string

	// PutKey returns the key that a canonical string stands for. Strings come from the store, so
	// anyone may have written them: what is malformed is an error. The receiver only determines the
	// type of key.
	PutKey(canonical string) (AllocatorKey, error)
}

// MapKey is a key that is made of labels. Backends that keep the labels one by one, as the objects
// of Kubernetes, take no others; those on a key-value store take any.
type MapKey interface {
	AllocatorKey

	// GetAsMap returns the labels by name.
	GetAsMap() map[string]string

	// PutKeyFromMap is the inverse of GetAsMap.
	PutKeyFromMap(labels map[string]string) (AllocatorKey, error)
}

// StringKey is the plainest key: a string that stands for itself.
type StringKey string

// String implements fmt.Stringer.
func (k StringKey) String() string { return string(k) }

// GetKey implements [AllocatorKey].
func (k StringKey) GetKey() string { return string(k) }

// PutKey implements [AllocatorKey].
func (StringKey) PutKey(s string) (AllocatorKey, error) {
	if s == "" {
		return nil, errors.New("a key must not be empty")
	}
	return StringKey(s), nil
}

// GetAsMap implements [MapKey].
func (k StringKey) GetAsMap() map[string]string { return map[string]string{"key": string(k)} }

// PutKeyFromMap implements [MapKey].
func (k StringKey) PutKeyFromMap(m map[string]string) (AllocatorKey, error) {
	return k.PutKey(m["key"])
}

// directChild returns the last part of key if it stands directly under prefix, which ends in a
// slash. Label strings hold slashes, so one key's directory in the store can lie inside another's.
func directChild(key, prefix string) (name string, ok bool) {
	if !strings.HasPrefix(key, prefix) || len(key) == len(prefix) {
		return "", false
	}
	name = key[len(prefix):]
	return name, !strings.Contains(name, "/")
}

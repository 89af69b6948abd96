package kvstore

import (
	"errors"
	"fmt"
)

// MaxTxnOps bounds the conditions, and the operations of either branch, of one transaction. It is
// the default limit of an etcd server.
const MaxTxnOps = 128

// ErrTxnTooLarge means that a transaction within [MaxTxnOps] is more than this store can do at
// once, or that one without writes reads more than fits in an answer. Nothing was written; smaller
// ones may go through.
var ErrTxnTooLarge = errors.New("transaction is too large for this key-value store")

// Txn is a transaction: if all conditions hold, Then is run, otherwise Else. No branch may write
// the same key twice.
type Txn struct {
	If         []Cond
	Then, Else []Op
}

// TxnResult is the outcome of a transaction.
type TxnResult struct {
	// Succeeded means that all conditions held and Then was run.
	Succeeded bool
	// Revision is the store's revision after the transaction; writes of the branch carry it.
	Revision int64
	// Results has one entry for each operation of the branch that was run: the pairs read by a Get
	// or List, nil for writes.
	Results [][]KeyValue
}

// CondKind is what a condition compares.
type CondKind uint8

// The kinds of condition. Those on a prefix must hold for every key under it, and so hold when
// there is none.
const (
	// CondAbsent: the key does not exist.
	CondAbsent CondKind = iota + 1
	// CondExists: the key exists.
	CondExists
	// CondValueIs: the key exists with that value.
	CondValueIs
	// CondModRevisionIs: the key exists and was last written at that revision. No key was at 0.
	CondModRevisionIs
	// CondCreateRevisionIs: the key exists and was created at that revision. No key was at 0.
	CondCreateRevisionIs
	// CondPrefixValuesAre: all keys under the prefix have that value. A transaction may have one of
	// these.
	CondPrefixValuesAre
	// CondPrefixUnchangedSince: no key under the prefix was written after that revision. Deletions
	// are not noticed. With revision 0: no key exists.
	CondPrefixUnchangedSince
	// CondUnleased: the key does not exist, or hangs on no lease.
	CondUnleased
)

// Cond is one condition of a [Txn]. Use the functions that return one.
type Cond struct {
	Kind CondKind
	// Key is the key, or the prefix.
	Key      string
	Value    []byte
	Revision int64
}

// Absent holds if the key does not exist.
func Absent(key string) Cond { return Cond{Kind: CondAbsent, Key: key} }

// Exists holds if the key exists.
func Exists(key string) Cond { return Cond{Kind: CondExists, Key: key} }

// ValueIs holds if the key exists with exactly that value.
func ValueIs(key string, value []byte) Cond { return Cond{Kind: CondValueIs, Key: key, Value: value} }

// ModRevisionIs holds if the key exists and revision wrote it last.
func ModRevisionIs(key string, revision int64) Cond {
	return Cond{Kind: CondModRevisionIs, Key: key, Revision: revision}
}

// CreateRevisionIs holds if the key exists and was made by revision: it may have been written
// since, but was never deleted.
func CreateRevisionIs(key string, revision int64) Cond {
	return Cond{Kind: CondCreateRevisionIs, Key: key, Revision: revision}
}

// Unleased holds if the key hangs on no lease, or does not exist.
func Unleased(key string) Cond { return Cond{Kind: CondUnleased, Key: key} }

// PrefixAbsent holds if no key starts with prefix.
func PrefixAbsent(prefix string) Cond { return PrefixUnchangedSince(prefix, 0) }

// PrefixValuesAre holds if every key that starts with prefix has that value, or there is none.
func PrefixValuesAre(prefix string, value []byte) Cond {
	return Cond{Kind: CondPrefixValuesAre, Key: prefix, Value: value}
}

// PrefixUnchangedSince holds if no key that starts with prefix was written after revision. Keys
// deleted since do not disturb it.
func PrefixUnchangedSince(prefix string, revision int64) Cond {
	return Cond{Kind: CondPrefixUnchangedSince, Key: prefix, Revision: revision}
}

// OpKind is what an operation does.
type OpKind uint8

// The kinds of operation.
const (
	// OpPut writes a key.
	OpPut OpKind = iota + 1
	// OpDelete deletes a key; deleting what does not exist is no fault.
	OpDelete
	// OpDeletePrefix deletes all keys that start with Key.
	OpDeletePrefix
	// OpGet reads a key.
	OpGet
	// OpList reads all keys that start with Key, sorted.
	OpList
)

// Lifetime is how long a written key stays.
type Lifetime uint8

// The lifetimes of a key.
const (
	// Permanent keys stay until they are deleted.
	Permanent Lifetime = iota
	// Leased keys go when their writer is gone for the lease TTL.
	Leased
)

// Op is one operation of a [Txn]. Use the functions that return one.
type Op struct {
	Kind OpKind
	// Key is the key, or the prefix.
	Key      string
	Value    []byte
	Lifetime Lifetime
}

// PutOp writes a key.
func PutOp(key string, value []byte, lifetime Lifetime) Op {
	return Op{Kind: OpPut, Key: key, Value: value, Lifetime: lifetime}
}

// DeleteOp deletes a key.
func DeleteOp(key string) Op { return Op{Kind: OpDelete, Key: key} }

// DeletePrefixOp deletes all keys that start with prefix.
func DeletePrefixOp(prefix string) Op { return Op{Kind: OpDeletePrefix, Key: prefix} }

// GetOp reads a key; the result has one pair or none.
func GetOp(key string) Op { return Op{Kind: OpGet, Key: key} }

// ListOp reads all keys that start with prefix.
func ListOp(prefix string) Op { return Op{Kind: OpList, Key: prefix} }

// Validate finds what every backend refuses: empty keys, too many operations, a key written twice
// in a branch. Backends call it themselves.
func (t Txn) Validate() error {
	var errs []error
	if len(t.If) > MaxTxnOps || len(t.Then) > MaxTxnOps || len(t.Else) > MaxTxnOps {
		errs = append(errs, fmt.Errorf("transaction has %d conditions and branches of %d and %d operations: at most %d of each are allowed",
			len(t.If), len(t.Then), len(t.Else), MaxTxnOps))
	}
	ranges := 0
	for _, c := range t.If {
		if c.Kind == CondPrefixValuesAre {
			ranges++
		}
		if c.Key == "" {
			errs = append(errs, errors.New("transaction has a condition on an empty key"))
		}
		if c.Kind < CondAbsent || c.Kind > CondUnleased {
			errs = append(errs, fmt.Errorf("transaction has a condition of unknown kind %d on %q", c.Kind, c.Key))
		}
	}
	if ranges > 1 {
		errs = append(errs, fmt.Errorf("transaction has %d conditions on the values under a prefix: at most one is allowed", ranges))
	}
	for _, branch := range [][]Op{t.Then, t.Else} {
		errs = append(errs, validateBranch(branch))
	}
	return errors.Join(errs...)
}

func validateBranch(branch []Op) error {
	var errs []error
	for i, o := range branch {
		if o.Key == "" {
			errs = append(errs, errors.New("transaction has an operation on an empty key"))
		}
		if o.Kind < OpPut || o.Kind > OpList {
			errs = append(errs, fmt.Errorf("transaction has an operation of unknown kind %d on %q", o.Kind, o.Key))
		}
		if o.Kind != OpPut {
			continue
		}
		// Branches are short: comparing pairs costs less than a map.
		for j, p := range branch {
			clash := j < i && p.Kind == OpPut && p.Key == o.Key ||
				p.Kind == OpDelete && p.Key == o.Key ||
				p.Kind == OpDeletePrefix && len(o.Key) >= len(p.Key) && o.Key[:len(p.Key)] == p.Key
			if clash {
				errs = append(errs, fmt.Errorf("transaction writes %q twice in one branch", o.Key))
				break
			}
		}
	}
	return errors.Join(errs...)
}

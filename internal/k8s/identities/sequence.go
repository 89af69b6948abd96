package identities

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"

	"github.com/hawser-net/hawser/pkg/allocator"
)

// Sequence yields all numbers from first to last in the order in which every writer tries them for a key: it begins at a hash of the canonical string and
// goes on in steps of a second hash. It is part of the format: writers that do not agree on it would make two numbers for one key. first must be above 0 and
// not above last.
func Sequence(canonical string, first, last allocator.ID) iter.Seq[allocator.ID] {
	sum := sha256.Sum256([]byte(canonical))
	size := uint64(last-first) + 1
	at, step := binary.BigEndian.Uint64(sum[:8]), binary.BigEndian.Uint64(sum[8:16])
	if size != 0 { // all numbers there are
		at, step = at%size, step%size
		for step == 0 || divisor(step, size) != 1 { // else some numbers would never come
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

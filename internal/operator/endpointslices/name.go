package endpointslices

import (
	"math/rand/v2"
)

// alphabet is what the names of slices are made of: no vowels and nothing that looks like something
// else.
const alphabet = "bcdfghjklmnpqrstvwxyz2456789"

// randomName returns a name for a slice, like ces-dfm2kw9xb-7hq4z. There are 28^14 of them: two
// operators that make slices at the same time do not meet.
func randomName() string {
	b := []byte("ces-xxxxxxxxx-xxxxx")
	for i, c := range b {
		if c == 'x' {
			b[i] = alphabet[rand.IntN(len(alphabet))]
		}
	}
	return string(b)
}

package identities

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// DigestAnnotation holds a digest of the labels that an object was given as an identity: 32
// hexadecimal digits, and behind a slash the [TakenAnnotation] of the incarnation that it is of, if
// there is one. A process that reads the object for the first time detects by it whether the labels
// were edited since. It detects mistakes only: a client that may write the labels may write the
// annotation, too.
const DigestAnnotation = "hawser.net/labels-digest"

// Digest returns the digest of an identity's labels. It is short, because every agent reads it of
// every identity.
func Digest(security map[string]string) string {
	text, err := json.Marshal(security) // sorted by name
	if err != nil {
		panic(err) // strings can be marshalled
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// Seal notes on an object which labels it has been given: those that it has. It is for who knows
// that these are no edit.
func Seal(o *v2.CiliumIdentity) {
	if o.Annotations == nil {
		o.Annotations = map[string]string{}
	}
	o.Annotations[DigestAnnotation] = Digest(o.SecurityLabels)
	if taken := o.Annotations[TakenAnnotation]; taken != "" {
		o.Annotations[DigestAnnotation] += "/" + taken
	}
}

// Given returns the digest of the labels that an object was given; "" if it has none, such as one
// that another program made, or one of an earlier incarnation.
func Given(o *v2.CiliumIdentity) string {
	sum, taken, _ := strings.Cut(o.Annotations[DigestAnnotation], "/")
	if taken != o.Annotations[TakenAnnotation] {
		return ""
	}
	return sum
}

// Intact reports whether the labels of an object, which is not in quarantine, are those that it was
// given. sealed is false if the object has no digest.
func Intact(o *v2.CiliumIdentity) (intact, sealed bool) {
	sum := Given(o)
	return sum == Digest(o.SecurityLabels), sum != ""
}

// WasGiven reports whether these were the object's original labels by its digest, whatever labels
// it has now.
func WasGiven(o *v2.CiliumIdentity, security map[string]string) bool {
	return Given(o) == Digest(security)
}

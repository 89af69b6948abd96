package kvstore

import "encoding/base64"

// Layout is how the writers that share a store lay out what each kind of store has in its own way:
// texts of any content as part of a key or as a value, and locks. Cilium writes the same; see
// [Backend.Layout].
type Layout uint8

const (
	// LayoutEtcd: a text stands as it is. The lock of a path is held by the oldest key below the
	// path; the others wait.
	LayoutEtcd Layout = iota
	// LayoutConsul: a text stands in base64 with padding, in the alphabet for URLs (RFC 4648,
	// section 5). The lock of a path is the key <path>.lock, and is held while that key hangs on a
	// session. Texts that stand as they are can be read, too.
	LayoutConsul
	// LayoutConsulPlain is LayoutConsul for a store that older writers share which know texts only
	// as they are: so they are written.
	LayoutConsulPlain
)

// Encode returns a text as it is written.
func (l Layout) Encode(text string) string {
	if l == LayoutConsul {
		return base64.URLEncoding.EncodeToString([]byte(text))
	}
	return text
}

// Decode returns the text that stands in a store in any form which the layout reads. A text that
// could itself be the encoded form of another one is taken for that: a text which is to be read
// back as it stands has a character outside of the alphabet, as the colon of every label.
func (l Layout) Decode(stored string) string {
	if l == LayoutEtcd {
		return stored
	}
	text, err := base64.URLEncoding.Strict().DecodeString(stored)
	if err != nil {
		return stored
	}
	return string(text)
}

// Encodings returns all forms in which a text is read, first that in which it is written.
func (l Layout) Encodings(text string) []string {
	switch l {
	case LayoutConsul:
		return []string{l.Encode(text), text}
	case LayoutConsulPlain:
		return []string{text, LayoutConsul.Encode(text)}
	}
	return []string{text}
}

// LockKey returns the key that is the lock of a text below a path, and that hangs on a session
// while the lock is held. ok is false if a lock of this layout is no single key.
func (l Layout) LockKey(path, text string) (key string, ok bool) {
	if l == LayoutEtcd {
		return "", false
	}
	return path + LayoutConsul.Encode(text) + ".lock", true
}

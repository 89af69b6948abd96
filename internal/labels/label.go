package labels

import (
	"errors"
	"fmt"
	"strings"
)

// Sources of labels, as they appear before the colon.
const (
	SourceUnspec    = "unspec"    // none was given
	SourceAny       = "any"       // in selectors: whatever the source
	SourceK8s       = "k8s"       // Kubernetes, or a replacement of it
	SourceGenerated = "gen"       // derived from the pod's specification
	SourceReserved  = "reserved"  // the network's own
	SourceCIDR      = "cidr"      // a prefix outside the cluster
	SourceCIDRGroup = "cidrgroup" // a named group of prefixes
	SourceBlock     = "block"     // a block of addresses, whatever identities they have
	SourceNode      = "node"      // labels of a node
	SourceFQDN      = "fqdn"      // a DNS name
	SourceDirectory = "directory" // objects read from files
)

// Keys that the network itself sets on the labels of a pod, and that users cannot.
const (
	KeyNamespace       = "io.kubernetes.pod.namespace"
	KeyServiceAccount  = "io.cilium.k8s.policy.serviceaccount"
	KeyCluster         = "io.cilium.k8s.policy.cluster"
	KeyNamespaceLabels = "io.cilium.k8s.namespace.labels" // followed by "." and the namespace's key
	KeyNamedPorts      = "io.cilium.k8s.named-ports"
	KeyFixedIdentity   = "io.cilium.fixed-identity" // chosen by users on purpose

	// PrefixOwned starts every key that is stripped from a pod's own labels.
	PrefixOwned = "io.cilium.k8s"
)

// Limits on what is accepted from outside, in bytes. Kubernetes allows keys of 253+1+63 and
// values of 63; namespace labels add their prefix.
const (
	MaxKeyLen   = 512
	MaxValueLen = 512
	MaxLabels   = 1024
)

// Label is one label. Labels are comparable with ==.
type Label struct {
	Source string
	Key    string
	Value  string
}

// New returns a label; an empty source becomes SourceUnspec.
func New(source, key, value string) Label {
	if source == "" {
		source = SourceUnspec
	}
	return Label{Source: source, Key: key, Value: value}
}

// Reserved returns the label "reserved:name".
func Reserved(name string) Label { return Label{Source: SourceReserved, Key: name} }

// String returns "source:key=value", or "source:key" when the value is empty.
func (l Label) String() string {
	if l.Value == "" {
		return l.Source + ":" + l.Key
	}
	return l.Source + ":" + l.Key + "=" + l.Value
}

// Parse reads "[source:]key[=value]". Without a source the label's source is SourceUnspec. The
// first colon before any "=" ends the source, so keys may hold colons and values anything but ";".
func Parse(s string) (Label, error) {
	var l Label
	head, value, _ := strings.Cut(s, "=")
	l.Value = value
	if source, key, ok := strings.Cut(head, ":"); ok {
		l.Source, l.Key = source, key
	} else {
		l.Key = head
	}
	if l.Source == "" {
		l.Source = SourceUnspec
	}
	if err := l.Validate(); err != nil {
		return Label{}, fmt.Errorf("label %q: %w", clip(s), err)
	}
	return l, nil
}

// Validate reports why a label cannot be part of a canonical string: an empty, too long or
// ambiguous part. Labels that pass survive a round trip through KVString and ParseKV.
func (l Label) Validate() error {
	switch {
	case l.Source == "":
		return errors.New("the source is empty")
	case strings.ContainsAny(l.Source, ":=;") || !printable(l.Source):
		return fmt.Errorf("the source %q holds a character that is not allowed", clip(l.Source))
	case l.Key == "":
		return errors.New("the key is empty")
	case len(l.Key) > MaxKeyLen || len(l.Source) > MaxKeyLen:
		return fmt.Errorf("the key is longer than %d bytes", MaxKeyLen)
	case strings.ContainsAny(l.Key, "=;") || !printable(l.Key):
		return fmt.Errorf("the key %q holds a character that is not allowed", clip(l.Key))
	case len(l.Value) > MaxValueLen:
		return fmt.Errorf("the value of %q is longer than %d bytes", clip(l.Key), MaxValueLen)
	case strings.Contains(l.Value, ";") || !printable(l.Value):
		return fmt.Errorf("the value of %q holds a character that is not allowed", clip(l.Key))
	}
	return nil
}

// printable reports whether s consists of visible ASCII.
func printable(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// clip bounds what error texts repeat of untrusted input.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}

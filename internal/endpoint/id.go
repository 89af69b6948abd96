package endpoint

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// invalidIDError is what a malformed endpoint id, or a malformed request, is refused with.
type invalidIDError struct{ reason string }

func (e *invalidIDError) Error() string { return e.reason }

// Is makes every such error match ErrInvalid.
func (e *invalidIDError) Is(target error) bool { return target == ErrInvalid }

// RefKind is the namespace in which a Ref names an endpoint.
type RefKind uint8

// The kinds of endpoint reference that the REST API's endpoint id can carry. The last four are
// no longer used by current clients of the API, but older ones still send them.
const (
	RefLocalID       RefKind = iota // cilium-local:<ID>, also a bare ID
	RefGlobalID                     // cilium-global:<cluster>:<node>:<ID>
	RefAttachment                   // cni-attachment-id:<container id>[:<interface>]
	RefPodName                      // cep-name:<namespace>/<name> and pod-name:<namespace>/<name>
	RefIP                           // ipv4:<address>, ipv6:<address>
	RefContainerID                  // container-id:<container id>
	RefContainerName                // container-name:<name>
	RefDocker                       // docker-endpoint:<id>
)

var refPrefixes = map[string]RefKind{
	"cilium-local":      RefLocalID,
	"cilium-global":     RefGlobalID,
	"cni-attachment-id": RefAttachment,
	"cep-name":          RefPodName,
	"pod-name":          RefPodName,
	"ipv4":              RefIP,
	"ipv6":              RefIP,
	"container-id":      RefContainerID,
	"container-name":    RefContainerName,
	"docker-endpoint":   RefDocker,
}

// Ref names an endpoint the way a client of the REST API does.
type Ref struct {
	Kind RefKind
	// Local is the ID of a RefLocalID; 0 asks for a new endpoint in a creation.
	Local uint16
	// Addr is the address of a RefIP.
	Addr netip.Addr
	// Text is the rest of every other kind, as given.
	Text string
}

// ParseRef reads an endpoint id of the REST API: `prefix:value`, or a bare ID for `cilium-local`.
// The error names the invalid part and is meant for the client.
func ParseRef(s string) (Ref, error) {
	prefix, value, found := strings.Cut(s, ":")
	if !found {
		prefix, value = "cilium-local", s
	}
	kind, ok := refPrefixes[prefix]
	if !ok {
		return Ref{}, &invalidIDError{fmt.Sprintf("endpoint id %q: prefix %q is not known; use one of cilium-local, cilium-global, cni-attachment-id, cep-name, ipv4, ipv6, container-id, container-name, pod-name, docker-endpoint", s, prefix)}
	}
	if value == "" && (kind != RefLocalID || !found) {
		return Ref{}, &invalidIDError{fmt.Sprintf("endpoint id %q: nothing follows the prefix", s)}
	}
	switch kind {
	case RefLocalID:
		if value == "" { // older plugins create with "cilium-local:"
			return Ref{Kind: kind}, nil
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return Ref{}, &invalidIDError{fmt.Sprintf("endpoint id %q: %q is not an ID", s, value)}
		}
		if n > 65535 {
			return Ref{}, &invalidIDError{fmt.Sprintf("endpoint id %q: %d is above the largest ID, 65535", s, n)}
		}
		return Ref{Kind: kind, Local: uint16(n)}, nil
	case RefIP:
		addr, err := netip.ParseAddr(value)
		if err != nil {
			return Ref{}, &invalidIDError{fmt.Sprintf("endpoint id %q: %q is not an IP address", s, value)}
		}
		if addr.Zone() != "" || (prefix == "ipv4") != addr.Unmap().Is4() {
			return Ref{}, &invalidIDError{fmt.Sprintf("endpoint id %q: %q is not an %s address", s, value, prefix)}
		}
		return Ref{Kind: kind, Addr: addr.Unmap()}, nil
	case RefPodName:
		ns, name, ok := strings.Cut(value, "/")
		if !ok || ns == "" || name == "" {
			return Ref{}, &invalidIDError{fmt.Sprintf("endpoint id %q: want <namespace>/<name> after the prefix", s)}
		}
	}
	return Ref{Kind: kind, Text: value}, nil
}

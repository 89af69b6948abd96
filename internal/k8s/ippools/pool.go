package ippools

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
)

// Annotations of pools.
const (
	// IgnoreAnnotation, if "true", has a pool be as if it were not there.
	IgnoreAnnotation = "ipam.cilium.io/ignore"
	// SkipMasqueradeAnnotation, if "true", has packets of pods with addresses of the pool leave the
	// cluster under these.
	SkipMasqueradeAnnotation = "ipam.cilium.io/skip-masquerade"
)

// DisputedAnnotation is one of CiliumNodes. The operator names by it those of the node's CIDRs that
// overlap what another had first, separated by commas; the node's agent gives no new addresses of
// them and hands them back when they are unused.
const DisputedAnnotation = "network.hawser.net/disputed-pod-cidrs"

// Pool is a CiliumPodIPPool that was read.
type Pool struct {
	Name string
	// IPv4 and IPv6 are what there is of each family.
	IPv4, IPv6 Family
	// AllowFirst and AllowLast report whether the outermost addresses of each block may be given
	// out.
	AllowFirst, AllowLast bool
	SkipMasquerade        bool
	// Fault reports why it is not known what there is of the pool, or whether it is to be ignored;
	// nil if it is. It has no ranges then, and nothing may be concluded from that.
	Fault error

	// Both are nil if pods must ask for the pool.
	pods, namespaces k8slabels.Selector
}

// Family is what a pool has of an address family; without ranges it has none of it.
type Family struct {
	Ranges []netip.Prefix
	// Bits is the length of the prefix of a block that a node gets.
	Bits int
}

// Of returns what the pool has of the family of an address.
func (p Pool) Of(ip netip.Addr) Family {
	if ip.Is4() {
		return p.IPv4
	}
	return p.IPv6
}

// Covers reports whether a block is the pool's to give: it lies within one of the ranges.
func (p Pool) Covers(block netip.Prefix) bool {
	return slices.ContainsFunc(p.Of(block.Addr()).Ranges, func(r netip.Prefix) bool {
		return r.Bits() <= block.Bits() && r.Contains(block.Addr())
	})
}

// Equal reports whether two pools give the same blocks in the same way.
func (p Pool) Equal(o Pool) bool {
	same := func(a, b Family) bool { return a.Bits == b.Bits && slices.Equal(a.Ranges, b.Ranges) }
	return p.Name == o.Name && same(p.IPv4, o.IPv4) && same(p.IPv6, o.IPv6) && p.AllowFirst == o.AllowFirst && p.AllowLast == o.AllowLast
}

// Read reads a pool. ignored means that it must be treated as absent. The error joins all that is
// invalid. Ranges are evaluated apart: if only an annotation or a selector is invalid, the pool has
// its ranges, and selects no pod if it is a selector; else it has a Fault.
func Read(o *v2alpha1.CiliumPodIPPool) (p Pool, ignored bool, err error) {
	var errs, faults []error
	truth := func(annotation string) bool {
		text, ok := o.Annotations[annotation]
		v, err := strconv.ParseBool(text)
		if ok && err != nil {
			errs = append(errs, fmt.Errorf("annotation %s: %q is neither true nor false", annotation, text))
		}
		return ok && v
	}
	p = Pool{
		Name: o.Name, AllowFirst: o.Spec.AllowFirstIP, AllowLast: o.Spec.AllowLastIP, SkipMasquerade: truth(SkipMasqueradeAnnotation),
	}
	others := errs
	errs = nil
	ignored = truth(IgnoreAnnotation)
	if f := o.Spec.IPv4; f != nil {
		p.IPv4, err = readFamily("ipv4", f.CIDRs, f.MaskSize)
		faults = append(faults, err)
	}
	if f := o.Spec.IPv6; f != nil {
		p.IPv6, err = readFamily("ipv6", f.CIDRs, f.MaskSize)
		faults = append(faults, err)
	}
	if err := errors.Join(append(errs, faults...)...); err != nil {
		p.Fault = fmt.Errorf("CiliumPodIPPool %s: %w", o.Name, err)
		p.IPv4, p.IPv6 = Family{}, Family{}
	}
	var errPods, errNamespaces error
	p.pods, errPods = selector("podSelector", o.Spec.PodSelector)
	p.namespaces, errNamespaces = selector("namespaceSelector", o.Spec.NamespaceSelector)
	if errPods != nil || errNamespaces != nil {
		p.pods, p.namespaces = nil, nil
	}
	if err := errors.Join(append(others, errPods, errNamespaces)...); err != nil {
		return p, ignored, errors.Join(p.Fault, fmt.Errorf("CiliumPodIPPool %s: %w", o.Name, err))
	}
	return p, ignored, p.Fault
}

func readFamily(name string, cidrs []string, bits int) (Family, error) {
	f := Family{Bits: bits}
	var errs []error
	for _, text := range cidrs {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil || p.Addr().Is4In6():
			errs = append(errs, fmt.Errorf("spec.%s.cidrs: %q is not a CIDR", name, text))
		case p.Addr().Is4() != (name == "ipv4"):
			errs = append(errs, fmt.Errorf("spec.%s.cidrs: %s is of the other family", name, p))
		case bits < p.Bits() || bits > p.Addr().BitLen():
			errs = append(errs, fmt.Errorf("spec.%s.maskSize: %s has no blocks of /%d", name, p, bits))
		case slices.ContainsFunc(f.Ranges, p.Overlaps):
			errs = append(errs, fmt.Errorf("spec.%s.cidrs: %s overlaps another of them", name, p))
		default:
			f.Ranges = append(f.Ranges, p.Masked())
		}
	}
	return f, errors.Join(errs...)
}

// selector turns a selector of the API's into one of Kubernetes: its labels are those of Kubernetes
// objects, whose keys may have the source "k8s:" before them.
func selector(field string, s *v2.LabelSelector) (k8slabels.Selector, error) {
	if s == nil {
		return nil, nil
	}
	key := func(k string) string { return strings.TrimPrefix(k, "k8s:") }
	out := metav1.LabelSelector{MatchLabels: map[string]string{}}
	for k, v := range s.MatchLabels {
		out.MatchLabels[key(k)] = string(v)
	}
	for _, e := range s.MatchExpressions {
		out.MatchExpressions = append(out.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: key(e.Key), Operator: metav1.LabelSelectorOperator(e.Operator), Values: e.Values,
		})
	}
	parsed, err := metav1.LabelSelectorAsSelector(&out)
	if err != nil {
		return nil, fmt.Errorf("spec.%s: %w", field, err)
	}
	return parsed, nil
}

// selects reports whether a pod uses the pool without asking for it.
func (p Pool) selects(pod, namespace map[string]string) bool {
	return (p.pods != nil || p.namespaces != nil) &&
		(p.pods == nil || p.pods.Matches(k8slabels.Set(pod))) &&
		(p.namespaces == nil || p.namespaces.Matches(k8slabels.Set(namespace)))
}

package ippools

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/hawser-net/hawser/internal/ipam"
)

// Annotations of pods and namespaces by which they ask for a pool.
const (
	PoolAnnotation     = "ipam.cilium.io/ip-pool"
	IPv4PoolAnnotation = "ipam.cilium.io/ipv4-pool"
	IPv6PoolAnnotation = "ipam.cilium.io/ipv6-pool"
	// RequireAnnotation, if "true", has a pod that neither asks for a pool nor is selected by one
	// get no address, rather than one of the default pool.
	RequireAnnotation = "ipam.cilium.io/require-pool-match"
)

// annotations are those of pods and namespaces that select a pool.
var annotations = [...]string{PoolAnnotation, IPv4PoolAnnotation, IPv6PoolAnnotation, RequireAnnotation}

// Wishes returns those of an object's annotations that select a pool; nil if there is none.
func Wishes(all map[string]string) map[string]string {
	var out map[string]string
	for _, name := range annotations {
		if v, ok := all[name]; ok {
			if out == nil {
				out = map[string]string{}
			}
			out[name] = v
		}
	}
	return out
}

// Pod is what selects the pool of a pod's address: annotations and labels of it and of its
// namespace.
type Pod struct {
	Annotations, Labels                   map[string]string
	NamespaceAnnotations, NamespaceLabels map[string]string
}

// Errors of [Choose].
var (
	// ErrNoMatch: the pod must not have an address of the default pool, and no other is meant.
	ErrNoMatch = errors.New("no pool of addresses is meant for the pod")
	// ErrUnknown: the pool does not exist.
	ErrUnknown = errors.New("there is no such CiliumPodIPPool")
)

// Choose returns the pool of each family that a pod is to have an address of. First counts what the
// pod's annotations ask for, one for the family before one for both; then those of its namespace;
// then the pools that select the pod, the first by name; then the default pool. pools are those
// that there are, by name. families are those that pods have; no pool is chosen for another.
func Choose(pod Pod, pools []Pool, standard string, families ipam.Families) (ipam.Choice, error) {
	require, err := requires(pod)
	if err != nil {
		return ipam.Choice{}, err
	}
	choose := func(annotation, family string) (string, error) {
		for _, from := range []map[string]string{pod.Annotations, pod.NamespaceAnnotations} {
			for _, name := range []string{annotation, PoolAnnotation} {
				if v := from[name]; v != "" {
					return v, known(v, name, pools)
				}
			}
		}
		for _, p := range pools {
			// One with a fault may have the family.
			has := p.Fault != nil || family == "IPv4" && len(p.IPv4.Ranges) > 0 || family == "IPv6" && len(p.IPv6.Ranges) > 0
			if has && p.selects(pod.Labels, pod.NamespaceLabels) {
				return p.Name, nil
			}
		}
		if require {
			return "", fmt.Errorf("%w: it has the annotation %s and neither %s nor a pool's selector gives it %s addresses", ErrNoMatch, RequireAnnotation, PoolAnnotation, family)
		}
		return standard, nil
	}
	var c ipam.Choice
	if families&ipam.IPv4 != 0 {
		if c.IPv4, err = choose(IPv4PoolAnnotation, "IPv4"); err != nil {
			return c, err
		}
	}
	if families&ipam.IPv6 != 0 {
		c.IPv6, err = choose(IPv6PoolAnnotation, "IPv6")
	}
	return c, err
}

func known(name, annotation string, pools []Pool) error {
	for _, p := range pools {
		if p.Name == name {
			return nil
		}
	}
	return fmt.Errorf("%w: %q, for which the annotation %s asks; create it or change the annotation", ErrUnknown, name, annotation)
}

// requires reads the annotation that forbids the default pool: that of the pod, else that of its
// namespace. A value that is neither true nor false is an error.
func requires(pod Pod) (bool, error) {
	for _, from := range []map[string]string{pod.Annotations, pod.NamespaceAnnotations} {
		if text, ok := from[RequireAnnotation]; ok {
			v, err := strconv.ParseBool(text)
			if err != nil {
				return false, fmt.Errorf("%w: the annotation %s is %q, neither true nor false", ErrNoMatch, RequireAnnotation, text)
			}
			return v, nil
		}
	}
	return false, nil
}

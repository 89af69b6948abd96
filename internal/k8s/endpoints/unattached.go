package endpoints

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/pods"
)

// runsAllTheSame reports whether an object of this node that no endpoint wants is about a pod that
// runs here nevertheless, with an address that the object names: another network plugin has
// attached it, before this one was installed, or its record is lost. Without the object others
// would take it for what is not known. An endpoint that was here and is gone is no such pod, and
// neither is one whose address an endpoint has.
func (e *Endpoints) runsAllTheSame(ctx context.Context, by requests, key k8s.Key, have object) (bool, error) {
	addrs := addressesOf(key, "", have.status.Networking)
	e.mu.Lock()
	over := e.ended[key] || e.haveAny(addrs)
	e.mu.Unlock()
	if over {
		return false, nil
	}
	pod, err := by.pods.Pods(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get pod %s, to find out whether its CiliumEndpoint is still needed: %w", key, err)
	}
	st := pod.Status
	if have.owner != "" && have.owner != pod.UID || st.Phase == corev1.PodSucceeded || st.Phase == corev1.PodFailed {
		return false, nil
	}
	return len(st.PodIPs) == 0 || slices.ContainsFunc(st.PodIPs, func(ip corev1.PodIP) bool {
		return slices.ContainsFunc(addrs, func(a pods.Address) bool { return a.IP.String() == ip.IP })
	}), nil
}

// haveAny reports whether an endpoint of this node has one of the addresses. It must be called with
// mu held.
func (e *Endpoints) haveAny(addrs []pods.Address) bool {
	for _, list := range e.locals {
		for _, l := range list {
			if slices.ContainsFunc(addrs, func(a pods.Address) bool { return a.IP == l.IPv4 || a.IP == l.IPv6 }) {
				return true
			}
		}
	}
	return false
}

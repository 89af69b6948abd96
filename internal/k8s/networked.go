package k8s

import corev1 "k8s.io/api/core/v1"

// Networked reports whether a pod has a network, and so an identity, of its own: not if it shares
// that of its node, and not any more when it has ended, for then its addresses may be another's.
func Networked(p *corev1.Pod) bool {
	return !p.Spec.HostNetwork && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// Package services follows the services of Kubernetes and reconciles the kernel's table with them:
// Service, EndpointSlice, and of this node the Node and the host ports of its Pods.
//
// [Services] is the whole part: it owns the engine of package service and the reconciler that
// writes its table to the kernel. Run starts a goroutine for each kind followed, one for the
// reconciler and one that goes through the flows after a change, and waits for all of them. Until
// everything that exists has been observed, the kernel keeps what an earlier agent wrote.
//
// Outside of Kubernetes a [File] of the same objects is followed instead.
//
// What is not followed: services that name another proxy (label
// service.kubernetes.io/service-proxy-name), and slices of headless services.
package services

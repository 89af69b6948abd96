package services

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/service"
)

// Protocol returns the number of one that has ports to balance by.
func Protocol(p corev1.Protocol) (number uint8, ok bool) {
	switch p {
	case corev1.ProtocolTCP, "":
		return 6, true
	case corev1.ProtocolUDP:
		return 17, true
	case corev1.ProtocolSCTP:
		return 132, true
	}
	return 0, false
}

func portNumber(n int32) (uint16, bool) { return uint16(n), n > 0 && n <= 0xFFFF }

// addresses parses what the API server has let pass; what is no plain address is left out.
func addresses(list []string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		a, err := netip.ParseAddr(s)
		if err != nil || a.IsUnspecified() || a.Zone() != "" {
			continue
		}
		if a = a.Unmap(); !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// sources returns the ranges of clients that may use a load balancer's addresses, and whether there
// are any: one that cannot be parsed admits no client, but the others still restrict.
func sources(list []string) (restricted bool, out []netip.Prefix) {
	for _, s := range list {
		// As Kubernetes reads it: with blanks around, and with bits beyond the mask.
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil || p.Addr().Is4In6() {
			continue
		}
		out = append(out, p.Masked())
	}
	return len(list) > 0, out
}

// fromService reports what a Service asks for. One that asks for nothing here, as one of type
// ExternalName, has no addresses.
func fromService(o *corev1.Service) service.Service {
	s := service.Service{Name: service.Name{Namespace: o.Namespace, Name: o.Name}, Created: o.CreationTimestamp.Time}
	if o.Spec.Type == corev1.ServiceTypeExternalName {
		return s
	}
	ips := o.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{o.Spec.ClusterIP}
	}
	if slices.Contains(ips, corev1.ClusterIPNone) {
		return s
	}
	s.Mesh = service.ReadMesh(o.Annotations)
	s.Forwarding = service.ReadForwarding(o.Annotations)
	s.ClusterIPs = addresses(ips)
	s.ExternalIPs = addresses(o.Spec.ExternalIPs)
	if o.Spec.Type == corev1.ServiceTypeLoadBalancer {
		var list []string
		for _, in := range o.Status.LoadBalancer.Ingress {
			// Proxy: the balancer wants to see the packets itself.
			if in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP {
				list = append(list, in.IP)
			}
		}
		s.LoadBalancerIPs = addresses(list)
		s.LimitSources, s.Sources = sources(o.Spec.LoadBalancerSourceRanges)
	}
	for _, p := range o.Spec.Ports {
		proto, known := Protocol(p.Protocol)
		port, valid := portNumber(p.Port)
		if !known || !valid {
			continue
		}
		to := service.Port{Name: p.Name, Proto: proto, Port: port}
		if o.Spec.Type == corev1.ServiceTypeNodePort || o.Spec.Type == corev1.ServiceTypeLoadBalancer {
			to.NodePort, _ = portNumber(p.NodePort)
		}
		s.Ports = append(s.Ports, to)
	}
	if o.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		s.Affinity = time.Duration(corev1.DefaultClientIPServiceAffinitySeconds) * time.Second
		if c := o.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			s.Affinity = max(0, time.Duration(*c.ClientIP.TimeoutSeconds)*time.Second)
		}
	}
	s.ExternalLocal = o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if s.ExternalLocal && o.Spec.Type == corev1.ServiceTypeLoadBalancer {
		s.HealthPort, _ = portNumber(o.Spec.HealthCheckNodePort)
	}
	s.InternalLocal = o.Spec.InternalTrafficPolicy != nil && *o.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	return s
}

// fromSlice reports what an EndpointSlice has. Absent conditions have the defaults of the API.
func fromSlice(o *discoveryv1.EndpointSlice) service.Slice {
	s := service.Slice{Name: service.Name{Namespace: o.Namespace, Name: o.Name}, Service: o.Labels[discoveryv1.LabelServiceName]}
	if o.AddressType != discoveryv1.AddressTypeIPv4 && o.AddressType != discoveryv1.AddressTypeIPv6 {
		return s
	}
	for _, p := range o.Ports {
		if p.Port == nil {
			continue // all ports: there is none to send to
		}
		port, valid := portNumber(*p.Port)
		proto, known := uint8(6), true
		if p.Protocol != nil {
			proto, known = Protocol(*p.Protocol)
		}
		if !valid || !known {
			continue
		}
		to := service.SlicePort{Proto: proto, Port: port}
		if p.Name != nil {
			to.Name = *p.Name
		}
		s.Ports = append(s.Ports, to)
	}
	for _, e := range o.Endpoints {
		c := e.Conditions
		to := service.Endpoint{
			Ready:       c.Ready == nil || *c.Ready,
			Terminating: c.Terminating != nil && *c.Terminating,
		}
		to.Serving = to.Ready
		if c.Serving != nil {
			to.Serving = *c.Serving
		}
		if e.NodeName != nil {
			to.Node = *e.NodeName
		}
		if e.Hints != nil {
			for _, z := range e.Hints.ForZones {
				to.ForZones = append(to.ForZones, z.Name)
			}
			for _, n := range e.Hints.ForNodes {
				to.ForNodes = append(to.ForNodes, n.Name)
			}
		}
		// All addresses of one are the same endpoint; the API wants only the first to be used.
		if list := addresses(e.Addresses[:min(1, len(e.Addresses))]); len(list) == 1 && list[0].Is4() == (o.AddressType == discoveryv1.AddressTypeIPv4) {
			to.Addr = list[0]
			s.Endpoints = append(s.Endpoints, to)
		}
	}
	return s
}

// hostIP reads at which address of the node a host port is; the zero address stands for all.
func hostIP(s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil || a.Zone() != "":
		return a, fmt.Errorf("hostIP %q is not an IP address", s)
	case a.IsUnspecified():
		return netip.Addr{}, nil
	}
	return a.Unmap(), nil
}

// fromPod returns the host ports of a pod that runs and has addresses of its own. The error names
// those that cannot be served: an address that cannot be read does not stand for all.
func fromPod(o *corev1.Pod) ([]service.HostPort, error) {
	if !k8s.Networked(o) {
		return nil, nil
	}
	var ips []string
	for _, ip := range o.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	var out []service.HostPort
	var errs []error
	containers := slices.Clone(o.Spec.Containers)
	for _, c := range o.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			containers = append(containers, c)
		}
	}
	for _, c := range containers {
		for _, p := range c.Ports {
			proto, known := Protocol(p.Protocol)
			host, ok := portNumber(p.HostPort)
			port, valid := portNumber(p.ContainerPort)
			if !known || !ok || !valid {
				continue
			}
			at, err := hostIP(p.HostIP)
			if err != nil {
				errs = append(errs, fmt.Errorf("host port %d of container %s of pod %s/%s is not served: %w", host, c.Name, o.Namespace, o.Name, err))
				continue
			}
			for _, ip := range addresses(ips) {
				out = append(out, service.HostPort{Addr: at, Port: host, Proto: proto, Backend: netip.AddrPortFrom(ip, port)})
			}
		}
	}
	return out, errors.Join(errs...)
}

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestKubernetesFlows: in a cluster flows name what people know from there: the workload that made
// a pod, the policy that decided, the service that was asked.
func TestKubernetesFlows(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns1, _ := twoNamespaces(t)
	n := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112")
	n.flags = append(n.flags, "--ipam", "kubernetes", "--enable-hubble", "--hubble-socket-path", n.path("run/hubble.sock"))
	n.start()
	if _, err := c.client.Kube.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "front", Namespace: "default", Labels: map[string]string{"app": "front", "pod-template-hash": "5d4f"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "front-5d4f", UID: "u", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "none"}}, AutomountServiceAccountToken: new(bool)},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	front, web := n.attached("front", nil), c.pod(n, "web", map[string]string{"app": "web"})
	for _, at := range web.both(80) {
		serveEcho(t, web.ns, at)
	}
	c.network("guard", "web", func(s *networkingv1.NetworkPolicySpec) {
		s.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "front"}}}}}}
	})
	svc, err := c.client.Kube.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	empty := netip.AddrPortFrom(netip.MustParseAddr(svc.Spec.ClusterIP), 80) // without backends

	seen := followFlows(t, n.flowConn(n.path("run/hubble.sock")), &observer.GetFlowsRequest{})
	has := func(what string, knock func(), is func(*flowpb.Flow) bool) {
		t.Helper()
		controllers.Eventually(t, time.Minute, func() string {
			knock()
			seen.mu.Lock()
			defer seen.mu.Unlock()
			if slices.ContainsFunc(seen.list, is) {
				return ""
			}
			return fmt.Sprintf("%s: none of %d flows, the last %v", what, len(seen.list), seen.list[max(0, len(seen.list)-1):])
		})
	}
	has("a connection that the policy allows", func() { _ = once(front.ns, web.both(80)[0], time.Second) }, func(f *flowpb.Flow) bool {
		by, made, self := f.GetIngressAllowedBy(), f.GetSource().GetWorkloads(), f.GetDestination().GetWorkloads()
		return f.GetVerdict() == flowpb.Verdict_FORWARDED && f.GetTrafficDirection() == flowpb.TrafficDirection_INGRESS && f.GetDestination().GetPodName() == "web" &&
			len(by) == 1 && by[0].GetNamespace() == "default" && by[0].GetName() == "guard" &&
			slices.Contains(by[0].GetLabels(), "k8s:io.cilium.k8s.policy.derived-from=NetworkPolicy") &&
			len(made) == 1 && made[0].GetKind() == "Deployment" && made[0].GetName() == "front" &&
			len(self) == 1 && self[0].GetKind() == "Pod" && self[0].GetName() == "web" && f.GetDestination().GetNodeName() == f.GetNodeName()
	})
	has("a service without backends", func() { _ = once(front.ns, empty, 50*time.Millisecond) }, func(f *flowpb.Flow) bool {
		return f.GetEventType().GetType() == flows.EventDrop && f.GetDropReasonDesc() == flowpb.DropReason_SERVICE_BACKEND_NOT_FOUND &&
			f.GetDestinationService().GetNamespace() == "default" && f.GetDestinationService().GetName() == "shop" && f.GetSource().GetPodName() == "front"
	})
	// A service with a backend: a client gets its answers from the service.
	api, err := c.client.Kube.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "api"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 8080, TargetPort: intstr.FromInt32(80)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.Kube.DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "api-1", Labels: map[string]string{discoveryv1.LabelServiceName: "api"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{web.ip4.String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
		Ports:     []discoveryv1.EndpointPort{{Port: new(int32(80)), Protocol: new(corev1.ProtocolTCP)}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	vip := netip.AddrPortFrom(netip.MustParseAddr(api.Spec.ClusterIP), 8080)
	has("the answer of a service", func() { _ = once(front.ns, vip, time.Second) }, func(f *flowpb.Flow) bool {
		return f.GetIsReply().GetValue() && f.GetSourceService().GetNamespace() == "default" && f.GetSourceService().GetName() == "api" &&
			int(f.GetSource().GetIdentity()) == web.endpoint().Status.Identity.ID && f.GetDestination().GetPodName() == "front" && f.GetDestinationService() == nil
	})
	controllers.Eventually(t, time.Minute, func() string { // so that other nodes know what made it
		o, err := c.endpoints().Get(t.Context(), "front", metav1.GetOptions{})
		if err != nil || o.Labels["pod-template-hash"] != "5d4f" {
			return fmt.Sprintf("the object of front has the labels %v, %v", o.GetLabels(), err)
		}
		return ""
	})
	// A pod of another node: what made it is known by the labels of its object.
	far, err := c.endpoints().Create(t.Context(), &v2.CiliumEndpoint{
		ObjectMeta: metav1.ObjectMeta{Name: "api-7d4b9c-x2x9z", Namespace: "default", Labels: map[string]string{"app": "web", "pod-template-hash": "7d4b9c"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	far.Status = v2.EndpointStatus{
		ID: 1, Identity: &v2.EndpointIdentity{ID: int64(web.endpoint().Status.Identity.ID)}, State: v2.EndpointReady,
		Networking: &v2.EndpointNetworking{NodeIP: "192.0.2.9", Addressing: []*v2.AddressPair{{IPv4: "10.0.9.9"}}},
	}
	body, err := json.Marshal(map[string]any{"status": far.Status})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.endpoints().Patch(t.Context(), far.Name, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	has("a pod of another node", func() { _ = once(front.ns, netip.MustParseAddrPort("10.0.9.9:80"), 50*time.Millisecond) }, func(f *flowpb.Flow) bool {
		to := f.GetDestination()
		return to.GetPodName() == far.Name && to.GetNamespace() == "default" && len(to.GetWorkloads()) == 1 &&
			to.GetWorkloads()[0].GetKind() == "Deployment" && to.GetWorkloads()[0].GetName() == "api"
	})

	// The agent's own events show what it did for that.
	events := map[string]bool{}
	controllers.Eventually(t, time.Minute, func() string {
		stream, err := observer.NewObserverClient(n.flowConn(n.path("run/hubble.sock"))).GetAgentEvents(t.Context(), &observer.GetAgentEventsRequest{})
		if err != nil {
			return err.Error()
		}
		for {
			res, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err.Error()
			}
			ev := res.GetAgentEvent()
			events[fmt.Sprint(ev.GetType(), " ", ev.GetEndpointUpdate().GetPodName()+ev.GetIpcacheUpdate().GetPodName()+ev.GetServiceUpsert().GetName())] = true
			if r := ev.GetEndpointRegenerate(); r != nil && int(r.GetId()) == web.endpoint().ID && slices.Contains(r.GetLabels(), "k8s:app=web") {
				events["regenerated web"] = true
			}
		}
		for _, want := range []string{
			"AGENT_STARTED ", "POLICY_UPDATED ", "ENDPOINT_CREATED web", "ENDPOINT_CREATED front", "regenerated web", "IPCACHE_UPSERTED web", "SERVICE_UPSERTED shop",
		} {
			if !events[want] {
				return fmt.Sprintf("no event %q in %v", want, slices.Sorted(maps.Keys(events)))
			}
		}
		return ""
	})
	n.stop()
}

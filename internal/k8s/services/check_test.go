package services_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestHealthCheckPorts: at a service's health check port it is said whether this node has ready
// endpoints of it, and how many; a port that another process has is served when it is free, and one
// of a service that is gone no longer.
func TestHealthCheckPorts(t *testing.T) {
	testenv.CheckLeaks(t)
	ns := testenv.NewNetNS(t) // whose ports no other process has
	c := newCluster(t)
	listen := func(port uint16) (l net.Listener, err error) {
		err = ns.Do(func() (err error) { l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); return err })
		return l, err
	}
	dial := func(port int32) (conn net.Conn, err error) {
		err = ns.Do(func() (err error) { conn, err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); return err })
		return conn, err
	}
	c.healthListen = listen
	const first int32 = 30100
	balancer := func(port int32) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal, port
		}
	}
	at := func(node, ip string, ready bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
	}
	c.service("web", "10.96.1.1", balancer(first))
	c.slice("web-1", "web", at("n2", "10.0.2.1", true))
	synced, stop := c.run()
	c.wait("hearing everything", synced)
	// It would keep its connections, which is not let.
	asker := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
		at, err := netip.ParseAddrPort(addr)
		if err != nil {
			return nil, err
		}
		return dial(int32(at.Port()))
	}}}
	defer asker.CloseIdleConnections()
	want := func(what string, port int32, code, ready int) {
		t.Helper()
		controllers.Eventually(t, 2*time.Minute, func() string {
			resp, err := asker.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
			if err != nil {
				return fmt.Sprintf("%s: %v", what, err)
			}
			defer resp.Body.Close()
			var said struct {
				Service        struct{ Namespace, Name string }
				LocalEndpoints int
			}
			if err := json.NewDecoder(resp.Body).Decode(&said); err != nil {
				return fmt.Sprintf("%s: %v", what, err)
			}
			if !resp.Close {
				t.Errorf("%s: the connection is kept", what)
			}
			if resp.StatusCode != code || said.LocalEndpoints != ready || said.Service.Namespace != "default" ||
				resp.Header.Get("X-Load-Balancing-Endpoint-Weight") != fmt.Sprint(ready) {
				return fmt.Sprintf("%s: %s %+v, want %d and %d endpoints", what, resp.Status, said, code, ready)
			}
			return ""
		})
	}
	want("all endpoints are elsewhere", first, 503, 0)
	c.slice("web-1", "web", at("n1", "10.0.1.1", true), at("n1", "10.0.1.2", true), at("n1", "10.0.1.3", false), at("n2", "10.0.2.1", true))
	want("two are here and ready", first, 200, 2)
	c.slice("web-1", "web", at("n1", "10.0.1.3", false))
	want("the one that is here is not ready", first, 503, 0)

	// Another process listens.
	other, err := listen(uint16(first + 1))
	c.must(err)
	c.service("late", "10.96.1.2", balancer(first+1))
	c.slice("late-1", "late", at("n1", "10.0.1.9", true))
	other.Close()
	want("the port is free", first+1, 200, 1)

	c.must(c.client.Kube.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}))
	gone := func(port int32) {
		t.Helper()
		controllers.Eventually(t, 2*time.Minute, func() string {
			conn, err := dial(port)
			if err != nil {
				return ""
			}
			conn.Close()
			return fmt.Sprintf("port %d is served without a service", port)
		})
	}
	gone(first)
	stop()
	gone(first + 1)
}

package services

import (
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FuzzSources: ranges that are named restrict, whatever they look like, and those that are
// understood are as the datapath wants them.
func FuzzSources(f *testing.F) {
	for _, s := range []string{"10.0.0.0/8", " 10.0.0.1/8 ,fd00::/8", "::ffff:10.0.0.0/104", "10.0.0.0", "/", "fe80::1%eth0/64", ",", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list := strings.Split(text, ",")
		restricted, out := sources(list)
		if !restricted {
			t.Fatalf("%q lets everybody in", list)
		}
		if len(out) > len(list) {
			t.Fatalf("%q became %v", list, out)
		}
		for _, p := range out {
			if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() || p.Addr().Zone() != "" {
				t.Errorf("%q has %v", list, p)
			}
		}
	})
}

func TestSources(t *testing.T) {
	if restricted, out := sources(nil); restricted || out != nil {
		t.Errorf("no ranges restrict to %v", out)
	}
	restricted, out := sources([]string{"nonsense", " 10.1.2.3/8", "fd00::1/16"})
	want := []string{"10.0.0.0/8", "fd00::/16"}
	var got []string
	for _, p := range out {
		got = append(got, p.String())
	}
	if diff := gocmp.Diff(want, got); !restricted || diff != "" {
		t.Errorf("restricted %v (-want +got):\n%s", restricted, diff)
	}
}

// TestHostIP: a host port is at all addresses of the node only if the pod says so. One whose
// address cannot be read is refused by name, and the pod's others are served.
func TestHostIP(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "invalid IP", "0.0.0.0": "invalid IP", "::": "invalid IP", // all addresses
		"192.0.2.1": "192.0.2.1", "127.0.0.1": "127.0.0.1", "::ffff:192.0.2.1": "192.0.2.1", "fd00::1": "fd00::1",
		"192.0.2.300": "refused", "192.0.2.1 ": "refused", "192.0.2.1/32": "refused", "localhost": "refused", "fe80::1%eth0": "refused", "192.0.2.01": "refused",
	} {
		ports := []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080, HostIP: text}, {ContainerPort: 81, HostPort: 8081}}
		got, err := fromPod(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "nginx", Ports: ports}}},
			Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.0.0.7"}}},
		})
		if len(got) == 0 || got[len(got)-1].Port != 8081 || got[len(got)-1].Addr.IsValid() {
			t.Errorf("hostIP %q: the other host port is %+v", text, got)
			continue
		}
		if want != "refused" {
			if err != nil || len(got) != 2 || got[0].Port != 8080 || got[0].Addr.String() != want {
				t.Errorf("hostIP %q: %+v, %v", text, got, err)
			}
			continue
		}
		if len(got) != 1 {
			t.Errorf("hostIP %q: served are %+v", text, got)
		}
		for _, part := range []string{"host port 8080", "nginx", "shop/web", text} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("hostIP %q: the error does not name %q: %v", text, part, err)
			}
		}
	}
}

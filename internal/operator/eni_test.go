package operator

import (
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/sandbox/cloud/aws"
)

// TestENI has operators, each a process that finds AWS as every user of its SDK does, killed in the
// middle of making an interface. Whoever leads next finishes or removes it: every address that the
// cloud counts as assigned is in the node's object, and nothing else is.
func TestENI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cloud := aws.New()
	cloud.AddVPC("vpc-1", netip.MustParsePrefix("10.0.0.0/16"))
	cloud.AddSubnet("subnet-1", "vpc-1", "eu-test-1a", netip.MustParsePrefix("10.0.0.0/24"), nil)
	cloud.AddGroup("sg-1", "vpc-1", nil)
	s := httptest.NewServer(cloud)
	t.Cleanup(s.Close)
	const secret = "very-secret-key"
	w.env = []string{
		"AWS_ENDPOINT_URL=" + s.URL, "AWS_REGION=eu-test-1", "AWS_ACCESS_KEY_ID=AKIDTEST", "AWS_SECRET_ACCESS_KEY=" + secret,
		"AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null", "AWS_EC2_METADATA_DISABLED=true",
	}
	flags := []string{
		"--ipam=eni", "--limit-ipam-api-qps=50", "--aws-release-excess-ips", "--excess-ip-release-delay=0",
		"--leader-election-lease-duration=10s", "--leader-election-renew-deadline=8s", "--leader-election-retry-period=200ms",
	}
	for k, action := range []string{"CreateNetworkInterface", "AttachNetworkInterface", ""} {
		p := w.start(fmt.Sprint(k), flags...)
		if action != "" {
			var once sync.Once
			cloud.Script(func(a string) (f *aws.Fault) {
				if a == action {
					once.Do(func() {
						p.signal(syscall.SIGKILL)
						<-p.done
						f = &aws.Fault{Drop: true, After: true}
					})
				}
				return f
			})
		}
		w.eventually(time.Minute, func() string { // the first operator registers the definitions
			if err := w.client.List(w.Context(), &v2.CiliumNodeList{}); err != nil {
				return err.Error()
			}
			return ""
		})
		w.eniNode(cloud, fmt.Sprint("node-", k))
		if action != "" {
			_ = p.ended(3 * time.Minute)
			continue
		}
		cloud.Script(nil)
		w.eventually(3*time.Minute, func() string { return w.audit(cloud, 3) })
		for _, text := range []string{p.log.String(), fmt.Sprintf("%+v", w.nodes())} {
			if strings.Contains(text, secret) {
				t.Errorf("the secret is told of")
			}
		}
		p.signal(syscall.SIGTERM)
		_ = p.ended(30 * time.Second)
	}
}

// eniNode runs an instance, and makes what its agent makes.
func (w *world) eniNode(cloud *aws.Cloud, name string) {
	w.Helper()
	if _, err := cloud.AddInstance("i-"+name, "m5.large", "subnet-1", []string{"sg-1"}, nil); err != nil {
		w.Fatal(err)
	}
	n := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.InstanceID, n.Spec.ENI.InstanceType = "i-"+name, "m5.large"
	index := 1
	n.Spec.ENI.FirstInterfaceIndex = &index
	w.create(n)
}

func (w *world) nodes() []v2.CiliumNode {
	w.Helper()
	var all v2.CiliumNodeList
	if err := w.client.List(w.Context(), &all, &client.ListOptions{}); err != nil {
		w.Fatal(err)
	}
	return all.Items
}

// audit compares what the cloud has assigned with what want nodes are told, in both directions.
func (w *world) audit(cloud *aws.Cloud, want int) string {
	assigned := map[string]string{}
	for _, i := range cloud.Interfaces() {
		if i.Attachment == "" {
			return i.ID + " is not attached"
		}
		if i.Index > 0 && !i.DeleteOnTermination {
			return i.ID + " would outlive its instance"
		}
		for _, a := range i.Addresses {
			assigned[a.String()] = i.Instance + " " + i.ID
		}
	}
	nodes := w.nodes()
	if len(nodes) != want {
		return fmt.Sprintf("%d nodes", len(nodes))
	}
	for _, n := range nodes {
		if len(n.Spec.IPAM.Pool) < 8 {
			return fmt.Sprintf("%s has %d addresses: %s", n.Name, len(n.Spec.IPAM.Pool), n.Status.IPAM.OperatorStatus.Error)
		}
		for a, x := range n.Spec.IPAM.Pool {
			if assigned[a] != n.Spec.InstanceID+" "+x.Resource {
				return fmt.Sprintf("%s of %s is assigned to %q", a, n.Name, assigned[a])
			}
			delete(assigned, a)
		}
	}
	if len(assigned) > 0 {
		return fmt.Sprint("assigned, and no node is told: ", assigned)
	}
	return ""
}

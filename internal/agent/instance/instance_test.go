package instance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/pflag"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/sandbox/cloud/alibaba"
	"github.com/hawser-net/hawser/internal/sandbox/cloud/aws"
	"github.com/hawser-net/hawser/internal/sandbox/cloud/azure"
	"github.com/hawser-net/hawser/internal/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

// machine is one of a cloud on this machine, with its metadata service.
type machine struct {
	cloud Cloud
	url   string
	want  Facts
	asked *atomic.Int32
}

func (m *machine) config() Config {
	return Config{Cloud: m.cloud, Endpoint: m.url, Timeout: 3 * time.Second, Attempt: 2 * time.Second, Pause: 5 * time.Millisecond,
		Has: func(mac net.HardwareAddr) (bool, error) { return mac.String() == m.want.MAC, nil }}
}

func serve(t *testing.T, h http.Handler) (url string, asked *atomic.Int32) {
	t.Helper()
	asked = &atomic.Int32{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

func onAWS(t *testing.T) *machine {
	t.Helper()
	c := aws.New()
	c.AddVPC("vpc-1", netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("100.64.0.0/16"))
	c.AddSubnet("subnet-a", "vpc-1", "eu-test-1a", netip.MustParsePrefix("10.0.0.0/24"), nil)
	c.AddGroup("sg-1", "vpc-1", nil)
	if _, err := c.AddInstance("i-n1", "m5.large", "subnet-a", []string{"sg-1"}, nil); err != nil {
		t.Fatal(err)
	}
	url, asked := serve(t, c.Metadata("i-n1"))
	return &machine{AWS, url, Facts{ID: "i-n1", Type: "m5.large", Zone: "eu-test-1a", VPC: "vpc-1", VPCRange: "10.0.0.0/16", Subnet: "subnet-a", MAC: c.Interfaces()[0].MAC}, asked}
}

func onAzure(t *testing.T) *machine {
	t.Helper()
	c := azure.New("sub-1", "Nodes")
	c.AddNetwork("net", netip.MustParsePrefix("10.0.0.0/16"))
	id, err := c.AddMachine("Workers", "3", c.AddSubnet("pods", "net", netip.MustParsePrefix("10.0.0.0/24")))
	if err != nil {
		t.Fatal(err)
	}
	url, asked := serve(t, c.Metadata(id))
	m := &machine{Azure, url, Facts{ID: strings.ToLower(id)}, asked}
	// Type, zone and hardware address are the cloud's to choose: it is asked what it has.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metadata/instance", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Metadata", "true")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	var says struct {
		Compute struct{ VMSize, Zone string }
		Network struct{ Interface []struct{ MacAddress string } }
	}
	if err := json.NewDecoder(resp.Body).Decode(&says); err != nil {
		t.Fatal(err)
	}
	digits := says.Network.Interface[0].MacAddress
	mac, err := net.ParseMAC(digits[:4] + "." + digits[4:8] + "." + digits[8:])
	if err != nil {
		t.Fatal(err)
	}
	m.want.Type, m.want.Zone, m.want.MAC = says.Compute.VMSize, says.Compute.Zone, mac.String()
	return m
}

func onAlibaba(t *testing.T) *machine {
	t.Helper()
	c := alibaba.New()
	c.AddVPC("vpc-1", netip.MustParsePrefix("10.0.0.0/16"))
	c.AddVSwitch("vsw-1", "vpc-1", "eu-test-1a", netip.MustParsePrefix("10.0.0.0/24"), nil)
	c.AddGroup("sg-1", "vpc-1", nil)
	if _, err := c.AddInstance("i-1", "ecs.g7.xlarge", "vsw-1", "sg-1"); err != nil {
		t.Fatal(err)
	}
	url, asked := serve(t, c.Metadata("i-1"))
	return &machine{Alibaba, url, Facts{ID: "i-1", Type: "ecs.g7.xlarge", Zone: "eu-test-1a", VPC: "vpc-1", VPCRange: "10.0.0.0/16", Subnet: "vsw-1", MAC: c.Interfaces()[0].MAC}, asked}
}

// TestRead reads the metadata of each cloud, and writes the CiliumNode that its operator reads.
func TestRead(t *testing.T) {
	t.Parallel()
	for _, m := range []*machine{onAWS(t), onAzure(t), onAlibaba(t)} {
		t.Run(string(m.cloud), func(t *testing.T) {
			t.Parallel()
			f, err := Read(t.Context(), m.config())
			if err != nil || f != m.want {
				t.Fatalf("%+v, %v; want %+v", f, err, m.want)
			}
			o := &v2.CiliumNode{}
			(&Wanted{}).Write(o, m.cloud, f)
			want := v2.NodeSpec{InstanceID: m.want.ID}
			switch m.cloud {
			case AWS:
				want.ENI = v2.ENISpec{InstanceType: "m5.large", AvailabilityZone: "eu-test-1a", VpcID: "vpc-1", NodeSubnetID: "subnet-a"}
			case Alibaba:
				want.AlibabaCloud = v2.AlibabaCloudSpec{InstanceType: "ecs.g7.xlarge", AvailabilityZone: "eu-test-1a", VPCID: "vpc-1", CIDRBlock: "10.0.0.0/16"}
			}
			if !reflect.DeepEqual(o.Spec, want) {
				t.Errorf("it writes %+v, want %+v", o.Spec, want)
			}
		})
	}
}

// TestReadForgedMetadata: a service that does not answer, answers too much, or speaks of another
// machine is not believed, and never holds the agent up for longer than it may.
func TestReadForgedMetadata(t *testing.T) {
	t.Parallel()
	m := onAWS(t)
	elsewhere, asked := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "i-n1") }))
	// over has the real service answer, but for one path.
	over := func(path, answer string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, path) {
				fmt.Fprint(w, answer)
				return
			}
			req, err := http.NewRequestWithContext(r.Context(), r.Method, m.url+r.URL.Path, http.NoBody)
			if err != nil {
				panic(err)
			}
			req.Header = r.Header.Clone()
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			defer resp.Body.Close()
			w.WriteHeader(resp.StatusCode)
			buf := make([]byte, 4096)
			n, _ := resp.Body.Read(buf)
			_, _ = w.Write(buf[:n])
		})
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for name, c := range map[string]struct {
		h    http.Handler
		want string
	}{
		"hangs": {http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), "does not answer in time"},
		"hangs in the middle": {http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "x")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}), "/latest/api/token"},
		"says too much":   {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", maxAnswer+1)) }), "longer than"},
		"leads elsewhere": {http.RedirectHandler(elsewhere, http.StatusTemporaryRedirect), "status 307"},
		"is switched off": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "secret in the body", http.StatusForbidden)
		}), "status 403"},
		"a token of two lines":  {over("/token", "a\r\nX-Header: b"), "invalid token"},
		"no token":              {over("/token", ""), "invalid token"},
		"an ID with a path":     {over("/instance-id", "i-1/../../x"), "no ID of AWS"},
		"an ID without end":     {over("/instance-id", strings.Repeat("i", 200)), "no ID of AWS"},
		"a type that is a text": {over("/instance-type", "m5.large\nkind: Secret"), "the instance's type"},
		"another VPC range":     {over("/vpc-ipv4-cidr-block", "10.0.0.0"), "CIDR of the instance's VPC"},
		"another machine":       {over("/mac", "02:00:00:00:00:99"), ""},
		"no hardware address":   {over("/mac", "../../iam/security-credentials/"), "hardware address"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, _ := serve(t, c.h)
			cfg := m.config()
			cfg.Endpoint = url
			if strings.HasPrefix(name, "hangs") {
				cfg.Timeout, cfg.Attempt = 500*time.Millisecond, 100*time.Millisecond
			}
			start := time.Now()
			f, err := Read(t.Context(), cfg)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), url) || !strings.Contains(err.Error(), "--ipam=eni") {
				t.Errorf("%+v, %v", f, err)
			}
			if err != nil && strings.Contains(err.Error(), "secret in the body") {
				t.Error("it reveals what a foreign service says")
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
	t.Run("the machine is another", func(t *testing.T) {
		t.Parallel()
		cfg := m.config()
		cfg.Has = func(net.HardwareAddr) (bool, error) { return false, nil }
		if f, err := Read(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "which no interface of this machine has") {
			t.Errorf("%+v, %v", f, err)
		}
	})
	t.Run("the agent ends", func(t *testing.T) {
		t.Parallel()
		url, _ := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		cfg := m.config()
		cfg.Endpoint, cfg.Timeout = url, time.Hour
		if _, err := Read(ctx, cfg); err == nil {
			t.Error("it has read something")
		}
	})
	t.Run("no redirect was followed", func(t *testing.T) {
		if n := asked.Load(); n > 0 {
			t.Errorf("%d requests", n)
		}
	})
}

// TestReadInTheEnd: a service that comes late, or fails now and then, is asked again.
func TestReadInTheEnd(t *testing.T) {
	t.Parallel()
	m := onAlibaba(t)
	var n atomic.Int32
	url, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) < 4 {
			http.Error(w, "later", http.StatusServiceUnavailable)
			return
		}
		http.Redirect(w, r, m.url+r.URL.Path, http.StatusFound)
	}))
	cfg := m.config()
	cfg.Endpoint = url
	if _, err := Read(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "status 302") {
		t.Errorf("a redirection was followed: %v", err)
	}
	var failed atomic.Int32
	inner := m.url
	url, _ = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if failed.Add(1) < 4 {
			http.Error(w, "later", http.StatusServiceUnavailable)
			return
		}
		req, err := http.NewRequestWithContext(r.Context(), r.Method, inner+r.URL.Path, http.NoBody)
		if err != nil {
			panic(err)
		}
		req.Header = r.Header.Clone()
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			panic(err)
		}
		defer resp.Body.Close()
		w.WriteHeader(resp.StatusCode)
		buf := make([]byte, 4096)
		n, _ := resp.Body.Read(buf)
		_, _ = w.Write(buf[:n])
	}))
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	cfg.Endpoint, cfg.Timeout = url, 10*time.Second
	if f, err := Read(t.Context(), cfg); err != nil || f != m.want {
		t.Errorf("%+v, %v", f, err)
	}
}

// TestReadOncePerBoot: an agent that starts again does not depend on the service, one of another
// boot does not believe what was read before.
func TestReadOncePerBoot(t *testing.T) {
	t.Parallel()
	m := onAWS(t)
	cfg := m.config()
	cfg.Path, cfg.Boot = filepath.Join(t.TempDir(), "instance.json"), "boot-1"
	cfg.Save = func(path string, data []byte) error { return os.WriteFile(path, data, 0o600) }
	for range 2 {
		if f, err := Read(t.Context(), cfg); err != nil || f != m.want {
			t.Fatal(f, err)
		}
	}
	once := m.asked.Load()
	cfg.Boot = "boot-2"
	if f, err := Read(t.Context(), cfg); err != nil || f != m.want || m.asked.Load() != 2*once {
		t.Errorf("in the next boot: %+v, %v, %d requests after %d", f, err, m.asked.Load(), once)
	}
	cfg.Endpoint = "http://127.0.0.1:1"
	if f, err := Read(t.Context(), cfg); err != nil || f != m.want {
		t.Errorf("without the service: %+v, %v", f, err)
	}
	// What is on disk is checked like what is read.
	if err := os.WriteFile(cfg.Path, []byte(`{"cloud":"eni","boot":"boot-2","facts":{"id":"i-2","mac":"02:00:00:00:00:77"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := Read(t.Context(), cfg); err == nil {
		t.Errorf("facts of another machine: %+v", f)
	}
	cfg.Save = func(string, []byte) error { return errors.New("disk full") }
	cfg.Endpoint = m.url
	if f, err := Read(t.Context(), cfg); err != nil || f != m.want {
		t.Errorf("with a full disk: %+v, %v", f, err)
	}
}

// TestEndpoint: only plain addresses of a service are taken.
func TestEndpoint(t *testing.T) {
	t.Parallel()
	for _, ok := range []string{"", "http://169.254.169.254", "http://[fd00:ec2::254]", "http://127.0.0.1:8080/"} {
		if err := CheckEndpoint(ok); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"169.254.169.254", "https://x", "http://", "http://user:secret@x", "http://x/latest", "http://x?y", "http://metadata.internal", "http://localhost:80", "http://[fe80::1%25eth0]", "file:///etc/passwd"} {
		if CheckEndpoint(bad) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestWanted: the CNI configuration counts before the flags, both before what the object says, and
// what neither says stays.
func TestWanted(t *testing.T) {
	t.Parallel()
	var w Wanted
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	w.Flags(fs)
	if err := fs.Parse([]string{
		"--ipam-pre-allocate=16", "--ipam-min-allocate=4", "--eni-subnet-tags=for=pods", "--eni-first-interface-index=1", "--eni-delete-on-termination=false",
		"--eni-use-primary-address", "--alibabacloud-vswitches=vsw-1,vsw-2", "--ipam-static-ip-tags=for=none",
	}); err != nil {
		t.Fatal(err)
	}
	var conf map[string]json.RawMessage
	if err := json.Unmarshal([]byte(`{"type": "hawser-cni", "ipam": {"pre-allocate": 2, "max-allocate": 40, "max-above-watermark": 3, "static-ip-tags": {"for": "edge"}},
		"eni": {"first-interface-index": 0, "security-groups": ["sg-1"], "subnet-tags": {"for": "others"}}, "azure": {"interface-name": "eth1"}, "alibaba-cloud": {"vswitch-tags": {"a": "b"}}}`), &conf); err != nil {
		t.Fatal(err)
	}
	if err := w.Read(conf); err != nil {
		t.Fatal(err)
	}
	if err := w.Validate(); err != nil {
		t.Fatal(err)
	}
	o := &v2.CiliumNode{}
	o.Spec.IPAM.MaxAllocate, o.Spec.ENI.SubnetIDs, o.Spec.ENI.ExcludeInterfaceTags = 7, []string{"subnet-9"}, map[string]string{"x": "y"}
	before := o.DeepCopy()
	w.Write(o, AWS, Facts{ID: "i-1", Type: "m5.large"})
	want := before.DeepCopy()
	want.Spec.InstanceID = "i-1"
	want.Spec.IPAM = v2.IPAMSpec{MinAllocate: 4, PreAllocate: 2, MaxAllocate: 40, MaxAboveWatermark: 3, StaticIPTags: map[string]string{"for": "edge"}}
	want.Spec.ENI.InstanceType, want.Spec.ENI.SubnetTags, want.Spec.ENI.SecurityGroups = "m5.large", map[string]string{"for": "others"}, []string{"sg-1"}
	want.Spec.ENI.FirstInterfaceIndex, want.Spec.ENI.DeleteOnTermination, want.Spec.ENI.UsePrimaryAddress = new(0), new(false), new(true)
	if !reflect.DeepEqual(o, want) {
		t.Errorf("AWS: %+v\nwant %+v", o.Spec, want.Spec)
	}
	azureNode, alibabaNode := &v2.CiliumNode{}, &v2.CiliumNode{}
	w.Write(azureNode, Azure, Facts{ID: "/subscriptions/x"})
	w.Write(alibabaNode, Alibaba, Facts{ID: "i-1"})
	if azureNode.Spec.Azure.InterfaceName != "eth1" || azureNode.Spec.ENI.SubnetTags != nil {
		t.Errorf("Azure: %+v", azureNode.Spec)
	}
	if a := alibabaNode.Spec.AlibabaCloud; len(a.VSwitches) != 2 || a.VSwitchTags["a"] != "b" || alibabaNode.Spec.Azure.InterfaceName != "" {
		t.Errorf("Alibaba Cloud: %+v", a)
	}
	again := o.DeepCopy()
	if w.Write(o, AWS, Facts{ID: "i-1", Type: "m5.large"}); !reflect.DeepEqual(o, again) {
		t.Errorf("written twice: %+v", o.Spec)
	}
}

// TestWantedRefused: what would not happen is not passed over.
func TestWantedRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"ipam": {"static-ip-tags": ["a"]}}`:              "static-ip-tags",
		`{"ipam": {"podCIDRs": ["10.0.0.0/24"]}}`:          "podCIDRs",
		`{"ipam": {"type": "host-local"}}`:                 "type",
		`{"eni": {"instance-type": "m5.large"}}`:           "metadata",
		`{"alibaba-cloud": {"vpc-id": "vpc-1"}}`:           "metadata",
		`{"eni": {"subnet": ["x"]}}`:                       "subnet",
		`{"eni": "x"}`:                                     "section eni",
		`{"ipam": {"pre-allocate": "8"}}`:                  "section ipam",
		`{"azure": {"interface-name": ["a"]}}`:             "section azure",
		`{"ipam": {"pre-allocate": -1}}`:                   "below 0",
		`{"eni": {"first-interface-index": -1}}`:           "below 0",
		`{"ipam": {"min-allocate": 9, "max-allocate": 8}}`: "max-allocate 8",
	} {
		var w Wanted
		var conf map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &conf); err != nil {
			t.Fatal(err)
		}
		err := errors.Join(w.Read(conf), w.Validate())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	fs.SetOutput(&strings.Builder{})
	(&Wanted{}).Flags(fs)
	if fs.Parse([]string{"--eni-first-interface-index=x"}) == nil {
		t.Error("a number that is none")
	}
}

package groups

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// ec2Server speaks EC2's query protocol: DescribeInstances in pages of one.
type ec2Server struct {
	*httptest.Server
	mu    sync.Mutex
	insts []instance
	asked []url.Values
	fail  bool
	hang  chan struct{} // if not nil, no request is answered until it is closed
	// only, if not "", has those only hang that ask for such a tag.
	only    string
	waiting atomic.Int64 // requests that hang
}

// instance is one with the filters that find it, and its interfaces' addresses.
type instance struct {
	tags           map[string]string
	groups         []string // IDs
	private        string
	public, second string
	v6             string
}

func newEC2(t *testing.T) *ec2Server {
	s := &ec2Server{}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *ec2Server) provider() *AWS {
	return NewAWS(
		config.WithBaseEndpoint(s.URL), config.WithRegion("eu-test-1"), config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("id", "secret", "")),
		config.WithRetryMaxAttempts(1), config.WithSharedConfigFiles(nil), config.WithSharedCredentialsFiles(nil),
	)
}

func (s *ec2Server) set(insts ...instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.insts = insts
}

func (s *ec2Server) breakDown(fail bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

// matches applies the filters of a request.
func (in *instance) matches(form url.Values) bool {
	for i := 1; ; i++ {
		name := form.Get(fmt.Sprintf("Filter.%d.Name", i))
		if name == "" {
			return true
		}
		var values []string
		for j := 1; form.Get(fmt.Sprintf("Filter.%d.Value.%d", i, j)) != ""; j++ {
			values = append(values, form.Get(fmt.Sprintf("Filter.%d.Value.%d", i, j)))
		}
		ok := name == "instance-state-name"
		if tag, is := strings.CutPrefix(name, "tag:"); is {
			ok = slices.Contains(values, in.tags[tag])
		}
		if name == "instance.group-id" {
			ok = slices.ContainsFunc(in.groups, func(g string) bool { return slices.Contains(values, g) })
		}
		if !ok {
			return false
		}
	}
}

func (s *ec2Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil || r.Form.Get("Action") != "DescribeInstances" {
		http.Error(w, "no such call", http.StatusBadRequest)
		return
	}
	if s.hang != nil && (s.only == "" || r.Form.Get("Filter.2.Name") == "tag:"+s.only) {
		s.waiting.Add(1)
		<-s.hang
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Form)
	if s.fail {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>not for you</Message></Error></Errors></Response>`)
		return
	}
	var found []instance
	for _, in := range s.insts {
		if in.matches(r.Form) {
			found = append(found, in)
		}
	}
	page := 0
	_, _ = fmt.Sscanf(r.Form.Get("NextToken"), "page-%d", &page)
	fmt.Fprint(w, `<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet>`)
	if page < len(found) {
		in := found[page]
		fmt.Fprintf(w, `<item><instancesSet><item><instanceId>i-%d</instanceId><privateIpAddress>%s</privateIpAddress><networkInterfaceSet><item>
			<privateIpAddressesSet><item><privateIpAddress>%s</privateIpAddress><association><publicIp>%s</publicIp></association></item>
			<item><privateIpAddress>%s</privateIpAddress></item></privateIpAddressesSet>
			<ipv6AddressesSet><item><ipv6Address>%s</ipv6Address></item></ipv6AddressesSet></item></networkInterfaceSet></item></instancesSet></item>`,
			page, in.private, in.private, in.public, in.second, in.v6)
	}
	fmt.Fprint(w, `</reservationSet>`)
	if page+1 < len(found) {
		fmt.Fprintf(w, `<nextToken>page-%d</nextToken>`, page+1)
	}
	fmt.Fprint(w, `</DescribeInstancesResponse>`)
}

func addrs(texts ...string) Members {
	var out Members
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

var byAddr = cmpopts.EquateComparable(netip.Addr{})

func TestAWSMembers(t *testing.T) {
	t.Parallel()
	s := newEC2(t)
	s.set(
		instance{tags: map[string]string{"team": "a", "tier": "db"}, groups: []string{"sg-1"}, private: "10.0.0.1", public: "192.0.2.1", v6: "2001:db8::1"},
		instance{tags: map[string]string{"team": "a"}, groups: []string{"sg-2", "sg-3"}, private: "10.0.0.2", second: "10.0.0.3"},
		instance{tags: map[string]string{"team": "b"}, groups: []string{"sg-1"}, private: "10.0.0.9"},
	)
	p := s.provider()
	for name, tt := range map[string]struct {
		group v2.AWSGroup
		want  Members
	}{
		"all labels":   {v2.AWSGroup{Labels: map[string]string{"team": "a", "tier": "db"}}, addrs("10.0.0.1", "192.0.2.1", "2001:db8::1")},
		"pages":        {v2.AWSGroup{Labels: map[string]string{"team": "a"}}, addrs("10.0.0.1", "10.0.0.2", "10.0.0.3", "192.0.2.1", "2001:db8::1")},
		"either group": {v2.AWSGroup{SecurityGroupsIDs: []string{"sg-2", "sg-9"}}, addrs("10.0.0.2", "10.0.0.3")},
		"both":         {v2.AWSGroup{SecurityGroupsIDs: []string{"sg-1"}, Labels: map[string]string{"team": "b"}}, addrs("10.0.0.9")},
		"none":         {v2.AWSGroup{SecurityGroupsIDs: []string{"sg-9"}}, nil},
	} {
		got, err := p.Members(t.Context(), v2.Group{AWS: &tt.group})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tt.want, got, byAddr, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: members (-want +got):\n%s", name, diff)
		}
	}

	asked := len(s.asked)
	for _, g := range []v2.Group{{}, {AWS: &v2.AWSGroup{}}, {AWS: &v2.AWSGroup{Region: "eu-test-1"}}} {
		if _, err := p.Members(t.Context(), g); err == nil {
			t.Errorf("%+v was looked up: every instance would be a member", g)
		}
	}
	if len(s.asked) != asked {
		t.Error("AWS was asked for a group that is none")
	}
	any := v2.Group{AWS: &v2.AWSGroup{SecurityGroupsIDs: []string{"sg-1"}}}
	s.breakDown(true)
	if _, err := p.Members(t.Context(), any); err == nil || !strings.Contains(err.Error(), "UnauthorizedOperation") || !strings.Contains(err.Error(), "sg-1") {
		t.Errorf("a refusal: %v", err)
	}
	s.breakDown(false)
	s.set(instance{groups: []string{"sg-1"}, private: "10.0.0.1"}, instance{groups: []string{"sg-1"}, private: "ten"})
	if got, err := p.Members(t.Context(), any); err == nil || !strings.Contains(err.Error(), `"ten"`) {
		t.Errorf("an address that is none: %v, %v", got, err)
	}
}

// TestAWSIsSilent has AWS take requests and not answer: whoever looks does not wait without end.
func TestAWSIsSilent(t *testing.T) {
	t.Parallel()
	s := newEC2(t)
	s.hang = make(chan struct{})
	t.Cleanup(func() { close(s.hang) })
	p := s.provider()
	p.timeout = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := p.Members(ctx, v2.Group{AWS: &v2.AWSGroup{SecurityGroupsIDs: []string{"sg-1"}}})
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Error(err)
	}
}

func TestAWSNeedsRegion(t *testing.T) {
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
		t.Setenv(name, "")
	}
	p := NewAWS(config.WithSharedConfigFiles(nil), config.WithSharedCredentialsFiles(nil))
	if _, err := p.Members(t.Context(), v2.Group{AWS: &v2.AWSGroup{SecurityGroupsIDs: []string{"sg-1"}}}); err == nil || !strings.Contains(err.Error(), "no region") {
		t.Errorf("without a region: %v", err)
	}
}

// TestAWSClients names more regions than there are: the clients of those that were not named lately
// go.
func TestAWSClients(t *testing.T) {
	t.Parallel()
	p := newEC2(t).provider()
	client := func(region string) any {
		t.Helper()
		c, err := p.client(t.Context(), region)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := client("")
	for i := range 2 * maxClients {
		client(fmt.Sprint("no-region-", i))
		if client("") != first {
			t.Fatalf("the client that is used all the time was made anew after %d others", i)
		}
	}
	if len(p.clients) != maxClients {
		t.Errorf("%d clients are kept", len(p.clients))
	}
}

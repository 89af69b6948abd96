package region

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	"github.com/hawser-net/hawser/internal/sandbox/cloud/aws"
)

// Status is what a cloud has, and what is done to it.
type Status struct {
	Provider string `json:"provider"`
	cloud.View
	// Calls are how often each action was asked for.
	Calls map[string]int `json:"calls"`
	// Disturbances are the faults that it is set to inject, in words.
	Disturbances []string `json:"disturbances"`
}

// Order has a cloud do something to its users. Do says what; the other fields belong to it.
type Order struct {
	// Do is "fail", "throttle", "slow", "fill", "terminate", "allocate" or "calm", which ends what
	// the first four began.
	Do string `json:"do"`
	// Fail: requests for Action are refused with Code and Message, Times often, 0 for always.
	// Reason stands for all three: "quota" or "permission".
	Reason  string `json:"reason,omitempty"`
	Action  string `json:"action,omitempty"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	Times   int    `json:"times,omitempty"`
	// Throttle: so many requests a second, and no more.
	Rate float64 `json:"rate,omitempty"`
	// Slow: each answer takes that long.
	Latency time.Duration `json:"latency,omitempty"`
	// Fill: all addresses of Subnet but Free have other owners; without Subnet those of all.
	Subnet string `json:"subnet,omitempty"`
	Free   int    `json:"free,omitempty"`
	// Terminate: the instance ends.
	Instance string `json:"instance,omitempty"`
	// Allocate: there is another public address, with Tags.
	Tags map[string]string `json:"tags,omitempty"`
}

// Reasons are those of [Order].
func Reasons() []string { return []string{"quota", "permission"} }

// reasons are refusals by provider, for people who do not know their clouds' codes by heart.
var reasons = map[string]map[string][]refusal{
	AWS: {
		"quota": {{"CreateNetworkInterface", cloud.Fault{Code: "NetworkInterfaceLimitExceeded", Message: "The maximum number of network interfaces has been reached."}}},
		"permission": {
			{"CreateNetworkInterface", cloud.Fault{Code: "UnauthorizedOperation", Message: "You are not authorized to perform this operation.", Status: 403}},
			{"AssignPrivateIpAddresses", cloud.Fault{Code: "UnauthorizedOperation", Message: "You are not authorized to perform this operation.", Status: 403}},
			{"AssignIpv6Addresses", cloud.Fault{Code: "UnauthorizedOperation", Message: "You are not authorized to perform this operation.", Status: 403}},
		},
	},
	Azure: {
		"quota":      {{"networkInterfaces/write", cloud.Fault{Code: "PrivateIPAddressLimitReached", Message: "The limit of private IP addresses has been reached."}}},
		"permission": {{"networkInterfaces/write", cloud.Fault{Code: "AuthorizationFailed", Message: "The client does not have authorization to perform action 'Microsoft.Network/networkInterfaces/write'.", Status: 403}}},
	},
	Alibaba: {
		"quota": {{"CreateNetworkInterface", cloud.Fault{Code: "QuotaExceeded.Eni", Message: "The maximum number of ENIs is exceeded.", Status: 403}}},
		"permission": {
			{"CreateNetworkInterface", cloud.Fault{Code: "Forbidden.RAM", Message: "User not authorized to operate on the specified resource.", Status: 403}},
			{"AssignPrivateIpAddresses", cloud.Fault{Code: "Forbidden.RAM", Message: "User not authorized to operate on the specified resource.", Status: 403}},
		},
	},
}

type refusal struct {
	action string
	fault  cloud.Fault
}

// disturber serves the socket.
type disturber struct {
	provider string
	cloud    Cloud

	mu      sync.Mutex
	faults  map[string]cloud.Fault // by action
	left    map[string]int         // how often yet; not in it for always
	rate    float64
	latency time.Duration
	filled  map[string]int // free addresses by subnet
}

func newDisturber(provider string, c Cloud) *disturber {
	d := &disturber{provider: provider, cloud: c, faults: map[string]cloud.Fault{}, left: map[string]int{}, filled: map[string]int{}}
	c.Script(d.script)
	return d
}

// script says what becomes of a request.
func (d *disturber) script(action string) *cloud.Fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok := d.faults[action]
	if !ok {
		return nil
	}
	if n, counted := d.left[action]; counted {
		if d.left[action] = n - 1; n <= 1 {
			delete(d.faults, action)
			delete(d.left, action)
		}
	}
	return &f
}

// ServeHTTP implements [http.Handler]: GET returns the status, POST takes an order.
func (d *disturber) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		var o Order
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&o)
		if err == nil {
			err = d.obey(o)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(d.status())
}

func (d *disturber) status() Status {
	out := Status{Provider: d.provider, View: d.cloud.View(), Calls: d.cloud.Calls()}
	d.mu.Lock()
	defer d.mu.Unlock()
	for action, f := range d.faults {
		text := fmt.Sprintf("%s is refused: %s", action, f.Code)
		if n, ok := d.left[action]; ok {
			text += fmt.Sprintf(" (%d times more)", n)
		}
		out.Disturbances = append(out.Disturbances, text)
	}
	if d.rate > 0 {
		out.Disturbances = append(out.Disturbances, fmt.Sprintf("%g requests a second are answered, the others throttled", d.rate))
	}
	if d.latency > 0 {
		out.Disturbances = append(out.Disturbances, fmt.Sprintf("each answer takes %v", d.latency))
	}
	for subnet, free := range d.filled {
		out.Disturbances = append(out.Disturbances, fmt.Sprintf("of subnet %s others took all addresses but %d", subnet, free))
	}
	slices.Sort(out.Disturbances)
	return out
}

func (d *disturber) obey(o Order) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch o.Do {
	case "fail":
		return d.fail(o)
	case "throttle":
		d.rate = max(o.Rate, 0)
		d.cloud.Throttle(d.rate, d.rate)
	case "slow":
		d.latency = max(o.Latency, 0)
		d.cloud.Latency(d.latency)
	case "fill":
		return d.fill(o.Subnet, o.Free)
	case "terminate":
		if !slices.ContainsFunc(d.cloud.View().Instances, func(i cloud.Instance) bool { return i.ID == o.Instance }) {
			return fmt.Errorf("no instance %q", o.Instance)
		}
		d.cloud.Terminate(o.Instance)
	case "allocate":
		c, ok := d.cloud.(interface {
			AddElasticIP(tags map[string]string) (aws.ElasticIP, error)
		})
		if !ok {
			return fmt.Errorf("only %s has elastic IPs here, and this is %s", AWS, d.provider)
		}
		_, err := c.AddElasticIP(o.Tags)
		return err
	case "calm":
		for subnet := range d.filled {
			d.cloud.Exhaust(subnet, 1<<20)
		}
		clear(d.faults)
		clear(d.left)
		clear(d.filled)
		d.rate, d.latency = 0, 0
		d.cloud.Throttle(0, 0)
		d.cloud.Latency(0)
	default:
		return fmt.Errorf("%q is nothing that a cloud does to its users", o.Do)
	}
	return nil
}

func (d *disturber) fail(o Order) error {
	list := []refusal{{o.Action, cloud.Fault{Code: o.Code, Message: o.Message}}}
	if o.Reason != "" {
		if list = reasons[d.provider][o.Reason]; list == nil {
			return fmt.Errorf("reason %q: want one of %s", o.Reason, strings.Join(Reasons(), ", "))
		}
	}
	for _, r := range list {
		if r.action == "" || r.fault.Code == "" {
			return fmt.Errorf("what is to fail, and with which code?")
		}
		d.faults[r.action] = r.fault
		if delete(d.left, r.action); o.Times > 0 {
			d.left[r.action] = o.Times
		}
	}
	return nil
}

func (d *disturber) fill(subnet string, free int) error {
	found := false
	for _, s := range d.cloud.View().Subnets {
		// People write the name, and Azure's are paths.
		if subnet != "" && s.ID != subnet && s.ID[strings.LastIndexByte(s.ID, '/')+1:] != subnet {
			continue
		}
		found = true
		d.cloud.Exhaust(s.ID, max(free, 0))
		d.filled[s.ID] = free
	}
	if !found {
		return fmt.Errorf("no subnet %q", subnet)
	}
	return nil
}

// Client speaks with a region by its socket.
type Client struct{ Socket string }

// Status asks what the cloud has.
func (c Client) Status(ctx context.Context) (Status, error) { return c.do(ctx, nil) }

// Order has the cloud do something, and returns what it is like then.
func (c Client) Order(ctx context.Context, o Order) (Status, error) { return c.do(ctx, &o) }

func (c Client) do(ctx context.Context, o *Order) (Status, error) {
	var out Status
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", c.Socket)
	}}
	method, body := http.MethodGet, []byte(nil)
	if o != nil {
		var err error
		if body, err = json.Marshal(o); err != nil {
			return out, err
		}
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://cloud/", bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	resp, err := (&http.Client{Transport: tr, Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		return out, fmt.Errorf("the cloud does not answer: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return out, err
	}
	if resp.StatusCode != http.StatusOK {
		return out, fmt.Errorf("%s", strings.TrimSpace(string(text)))
	}
	return out, json.Unmarshal(text, &out)
}

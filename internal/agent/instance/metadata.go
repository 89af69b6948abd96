package instance

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/hawser-net/hawser/pkg/retry"
)

// Cloud is one whose metadata can be read. Its value is that of --ipam.
type Cloud string

// The clouds.
const (
	AWS     Cloud = "eni"
	Azure   Cloud = "azure"
	Alibaba Cloud = "alibabacloud"
)

// clouds has for each where its metadata are served, and how they are read.
var clouds = map[Cloud]struct {
	name, endpoint string
	// why is what a person looks at first if it does not answer.
	why  string
	read func(context.Context, *service) (Facts, error)
	id   *regexp.Regexp
}{
	// Amazon EC2 User Guide, "Use the Instance Metadata Service".
	AWS: {"AWS", "http://169.254.169.254", "is the service enabled for the instance (HttpEndpoint)?", readAWS, shortID},
	// "Azure Instance Metadata Service".
	Azure: {"Azure", "http://169.254.169.254", "does a firewall of the node keep it away?", readAzure, resourceID},
	// Alibaba Cloud ECS, "Instance metadata".
	Alibaba: {"Alibaba Cloud", "http://100.100.100.200", "is the service enabled for the instance (HttpEndpoint)?", readAlibaba, shortID},
}

var (
	shortID    = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
	resourceID = regexp.MustCompile(`^/subscriptions(/[A-Za-z0-9._()-]+){3,15}$`)
	shortName  = regexp.MustCompile(`^[A-Za-z0-9._-]{0,128}$`)
)

// maxID bounds an ID, in bytes.
const maxID = 512

// Facts are the machine's metadata. What a cloud does not report is empty.
type Facts struct {
	// ID is that of the machine, as spec.instance-id of a CiliumNode has it.
	ID   string `json:"id"`
	Type string `json:"type,omitempty"`
	Zone string `json:"zone,omitempty"`
	// VPC and Subnet are those of the first interface, by ID, and VPCRange is the first CIDR of
	// VPC.
	VPC      string `json:"vpc,omitempty"`
	VPCRange string `json:"vpcRange,omitempty"`
	Subnet   string `json:"subnet,omitempty"`
	// MAC is the hardware address of the first interface, as net.HardwareAddr writes it.
	MAC string `json:"mac"`
}

// Config defines where metadata are read, and how long that may take.
type Config struct {
	Cloud Cloud
	// Endpoint is an URL; "" for the cloud's own.
	Endpoint string
	// Timeout bounds all attempts, Attempt each one.
	Timeout, Attempt time.Duration
	// Pause is the time after the first attempt that failed; it doubles.
	Pause time.Duration
	// Has reports whether this machine has an interface with a hardware address; nil asks the
	// kernel.
	Has func(net.HardwareAddr) (bool, error)
	// Path is where the facts are kept, Boot names the boot for which they hold, and Save stores a
	// file there. Without a path nothing is kept.
	Path, Boot string
	Save       func(path string, data []byte) error
	Log        *slog.Logger
}

// Defaults fills in what is not set.
func (c *Config) Defaults() {
	c.Endpoint = cmp.Or(c.Endpoint, clouds[c.Cloud].endpoint)
	c.Timeout = cmp.Or(c.Timeout, time.Minute)
	c.Attempt = cmp.Or(c.Attempt, 5*time.Second)
	c.Pause = cmp.Or(c.Pause, 200*time.Millisecond)
	if c.Has == nil {
		c.Has = hasInterface
	}
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
}

// CheckEndpoint reports what is wrong with an address of a metadata service; "" is that of the
// cloud.
func CheckEndpoint(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return fmt.Errorf("%q is no address of a metadata service such as http://169.254.169.254", endpoint)
	}
	// Pods are blocked by address, and a name could resolve to any.
	if ip, err := netip.ParseAddr(u.Hostname()); err != nil || ip.Zone() != "" {
		return fmt.Errorf("%q names no IP address, from which pods could be kept: give http://ADDRESS", endpoint)
	}
	return nil
}

// kept are facts in a file.
type kept struct {
	Cloud Cloud  `json:"cloud"`
	Boot  string `json:"boot"`
	Facts Facts  `json:"facts"`
}

// Read returns the facts of this machine: the former ones, if they are of the same boot, else those
// of the metadata. It retries until Timeout is over or ctx ends.
func Read(ctx context.Context, cfg Config) (Facts, error) {
	cfg.Defaults()
	cloud, ok := clouds[cfg.Cloud]
	if !ok {
		return Facts{}, fmt.Errorf("there are no metadata of %q", cfg.Cloud)
	}
	if f, ok := cfg.before(); ok {
		return f, nil
	}
	if err := CheckEndpoint(cfg.Endpoint); err != nil {
		return Facts{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	s := newService(cfg.Endpoint)
	defer s.client.CloseIdleConnections()
	pause := cfg.Pause
	for {
		f, err := cfg.attempt(ctx, s, cloud.read)
		if err == nil {
			cfg.keep(f)
			return f, nil
		}
		if !retry.Sleep(ctx, pause) {
			return Facts{}, fmt.Errorf("find out which instance of %s this is, from %s: %w; does the node run there, as --ipam=%s requires, and %s",
				cloud.name, cfg.Endpoint, err, cfg.Cloud, cloud.why)
		}
		pause = min(2*pause, cfg.Attempt)
		cfg.Log.Warn("cannot find out yet which instance this is", "cloud", cloud.name, "endpoint", cfg.Endpoint, "error", err)
	}
}

func (c *Config) attempt(ctx context.Context, s *service, read func(context.Context, *service) (Facts, error)) (Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Attempt)
	defer cancel()
	f, err := read(ctx, s)
	if err != nil {
		return f, err
	}
	return f, c.check(&f)
}

// check refuses facts that cannot be this machine's, and brings them into the form in which they
// are written.
func (c *Config) check(f *Facts) error {
	if len(f.ID) > maxID || !clouds[c.Cloud].id.MatchString(f.ID) {
		return fmt.Errorf("the metadata name instance %.200q, which is no ID of %s", f.ID, clouds[c.Cloud].name)
	}
	for what, text := range map[string]string{"type": f.Type, "zone": f.Zone, "VPC": f.VPC, "subnet": f.Subnet} {
		if !shortName.MatchString(text) {
			return fmt.Errorf("the metadata contain %.200q as the instance's %s", text, what)
		}
	}
	if f.VPCRange != "" {
		p, err := netip.ParsePrefix(f.VPCRange)
		if err != nil || p.Addr().Zone() != "" {
			return fmt.Errorf("the metadata contain %.200q as the CIDR of the instance's VPC", f.VPCRange)
		}
		f.VPCRange = p.Masked().String()
	}
	mac, err := net.ParseMAC(f.MAC)
	if err != nil || len(mac) != 6 {
		return fmt.Errorf("the metadata contain %.200q as the hardware address of the instance", f.MAC)
	}
	f.MAC = mac.String()
	has, err := c.Has(mac)
	switch {
	case err != nil:
		return fmt.Errorf("look for the interface that the metadata name: %w", err)
	case !has:
		return fmt.Errorf("the metadata are those of instance %s with the hardware address %s, which no interface of this machine has", f.ID, mac)
	}
	return nil
}

// before returns the facts that were read in this boot.
func (c *Config) before() (Facts, bool) {
	if c.Path == "" || c.Boot == "" {
		return Facts{}, false
	}
	data, err := os.ReadFile(c.Path)
	var k kept
	if err != nil || json.Unmarshal(data, &k) != nil || k.Cloud != c.Cloud || k.Boot != c.Boot {
		return Facts{}, false
	}
	return k.Facts, c.check(&k.Facts) == nil
}

func (c *Config) keep(f Facts) {
	if c.Path == "" || c.Boot == "" || c.Save == nil {
		return
	}
	data, err := json.Marshal(kept{Cloud: c.Cloud, Boot: c.Boot, Facts: f})
	if err == nil {
		err = c.Save(c.Path, data)
	}
	if err != nil {
		c.Log.Warn("the next agent must ask the metadata service again", "error", err)
	}
}

// hasInterface asks the kernel.
func hasInterface(mac net.HardwareAddr) (bool, error) {
	list, err := net.Interfaces()
	for _, i := range list {
		if i.HardwareAddr.String() == mac.String() {
			return true, nil
		}
	}
	return false, err
}

// ---- HTTP ---------------------------------------------------------------------------------------

// maxAnswer bounds an answer: the largest, of a machine with many addresses on Azure, has 60 KiB.
const maxAnswer = 256 << 10

// service is a metadata service. It is asked directly: a proxy would see tokens, and the target of
// a redirection is not the service.
type service struct {
	endpoint string
	client   *http.Client
}

func newService(endpoint string) *service {
	return &service{strings.TrimRight(endpoint, "/"), &http.Client{
		Transport:     &http.Transport{Proxy: nil, MaxResponseHeaderBytes: 16 << 10, MaxConnsPerHost: 1, ResponseHeaderTimeout: 10 * time.Second},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// ask returns the answer to a request with headers in pairs.
func (s *service) ask(ctx context.Context, method, path string, headers ...string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.endpoint+path, http.NoBody)
	if err != nil {
		return "", err
	}
	for k := 0; k < len(headers); k += 2 {
		req.Header.Set(headers[k], headers[k+1])
	}
	resp, err := s.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("%s does not answer in time", path)
		}
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", path, err)
	case len(body) > maxAnswer:
		return "", fmt.Errorf("the answer to %s is longer than %d bytes", path, maxAnswer)
	case resp.StatusCode != http.StatusOK:
		return "", statusError{path, resp.StatusCode}
	}
	return string(body), nil
}

// statusError is an answer that is none. The body is not shown: it may be anything.
type statusError struct {
	path string
	code int
}

func (e statusError) Error() string { return fmt.Sprintf("%s: status %d", e.path, e.code) }

func notFound(err error) bool {
	var s statusError
	return errors.As(err, &s) && s.code == http.StatusNotFound
}

package services

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/pkg/retry"
)

// File is where services come from on a node outside of Kubernetes. The file has, as YAML or JSON,
// Services under "services" and EndpointSlices under "endpoints".
type File struct {
	Path string
	// Interval is how often it is looked whether the file has changed.
	Interval time.Duration
	// Report is called after each change with what is wrong with the file, nil if nothing is.
	Report func(error)
}

// maxFileSize bounds the file: some ten thousand services.
const maxFileSize = 32 << 20

// state is the contents of a file.
type state struct {
	services map[service.Name]service.Service
	slices   map[service.Name]service.Slice
}

// parseFile reads the content of a file of services. All of it must make sense: what an API server
// would refuse is an error, and then nothing of it counts. That there are no services must be
// explicit: a file is empty while it is being written in place, or after the disk was full.
func parseFile(data []byte) (state, error) {
	var doc struct {
		Services  *[]corev1.Service           `json:"services"`
		Endpoints []discoveryv1.EndpointSlice `json:"endpoints"`
	}
	out := state{map[service.Name]service.Service{}, map[service.Name]service.Slice{}}
	if err := yaml.UnmarshalStrict(data, &doc); err != nil {
		return out, err
	}
	if doc.Services == nil {
		return out, errors.New(`there is no list "services"; write "services: []" if there are to be none`)
	}
	var errs []error
	for i := range *doc.Services {
		o := &(*doc.Services)[i]
		it := fromService(o)
		_, twice := out.services[it.Name]
		switch {
		case o.Name == "":
			errs = append(errs, fmt.Errorf("service %d has no name", i+1))
		case twice:
			errs = append(errs, fmt.Errorf("service %s is listed twice", it.Name))
		default:
			errs = append(errs, checkService(o, it))
		}
		out.services[it.Name] = it
	}
	for i := range doc.Endpoints {
		o := &doc.Endpoints[i]
		it := fromSlice(o)
		_, twice := out.slices[it.Name]
		switch {
		case o.Name == "":
			errs = append(errs, fmt.Errorf("the slice %d under endpoints has no name", i+1))
		case twice:
			errs = append(errs, fmt.Errorf("slice %s is listed twice", it.Name))
		default:
			errs = append(errs, checkSlice(o, it))
		}
		out.slices[it.Name] = it
	}
	return out, errors.Join(errs...)
}

// checkService reports what of a service was not understood.
func checkService(o *corev1.Service, it service.Service) error {
	if len(it.Ports) != len(o.Spec.Ports) {
		return fmt.Errorf("service %s has an invalid port: want a port of 1 to 65535 and protocol TCP, UDP or SCTP", it.Name)
	}
	ips := append([]string{o.Spec.ClusterIP}, o.Spec.ClusterIPs...)
	ips = append(ips, o.Spec.ExternalIPs...)
	for _, in := range o.Status.LoadBalancer.Ingress {
		ips = append(ips, in.IP)
	}
	for _, ip := range ips {
		if _, err := netip.ParseAddr(ip); ip != "" && ip != corev1.ClusterIPNone && err != nil {
			return fmt.Errorf("service %s: %q is not an IP address", it.Name, ip)
		}
	}
	for _, r := range o.Spec.LoadBalancerSourceRanges {
		if restricted, list := sources([]string{r}); restricted && len(list) == 0 {
			return fmt.Errorf("service %s: %q is no range of clients", it.Name, r)
		}
	}
	return nil
}

// checkSlice reports what of a slice was not understood.
func checkSlice(o *discoveryv1.EndpointSlice, it service.Slice) error {
	if it.Service == "" {
		return fmt.Errorf("slice %s does not name its service: set the label %s", it.Name, discoveryv1.LabelServiceName)
	}
	if len(it.Ports) != len(o.Ports) {
		return fmt.Errorf("slice %s has an invalid port, or its addressType is neither IPv4 nor IPv6", it.Name)
	}
	for _, e := range o.Endpoints {
		for _, text := range e.Addresses {
			ip, err := netip.ParseAddr(text)
			if err != nil || ip.Is4() != (o.AddressType == discoveryv1.AddressTypeIPv4) {
				return fmt.Errorf("slice %s: %q is no address of addressType %s", it.Name, text, o.AddressType)
			}
		}
	}
	return nil
}

// followFile applies the file to the engine, now and after each change, until ctx ends. A file that
// cannot be read changes nothing. synced is called when one was read.
func (s *Services) followFile(ctx context.Context, synced func()) error {
	var have state
	reported, fault := false, ""
	for look := (looker{path: s.cfg.File.Path}); ; {
		data, err := look.changed()
		if data != nil {
			var now state
			if now, err = parseFile(data); err == nil {
				s.replace(have, now)
				if have.services == nil {
					synced()
				}
				have = now
				s.cfg.Log.Info("read the services", "file", s.cfg.File.Path, "services", len(now.services), "slices", len(now.slices))
			}
			look.fault = err
		}
		if err != nil {
			kept := "services are those of before"
			if have.services == nil {
				kept = "no services are known yet, and the agent does not become ready before the file can be read"
			}
			err = fmt.Errorf("%s: %s: %w", kept, s.cfg.File.Path, err)
		}
		known := err != nil || have.services != nil
		if text := fmt.Sprint(err); known && (!reported || text != fault) {
			if reported, fault = true, text; err != nil {
				s.cfg.Log.Error("cannot read the file of services", "error", err)
			}
			if s.cfg.File.Report != nil {
				s.cfg.File.Report(err)
			}
		}
		if !retry.Sleep(ctx, s.cfg.File.Interval) {
			return nil
		}
	}
}

// looker polls a file.
type looker struct {
	path string
	seen []byte // at the last look, nil if it failed
	last []byte // what changed returned last
	// fault is what is wrong with that; the caller reports it.
	fault error
	// restless is how many looks in a row have each found something else than the one before.
	restless int
}

// maxRestless is after how many looks a file that is never the same at two of them is an error.
const maxRestless = 10

// changed returns what is in the file if that is not what it returned last, else nil and what was
// wrong with that. It counts only when two looks have found the same: while a file is written, the
// first half of it is a file as well, whether in place or as a new one.
func (l *looker) changed() ([]byte, error) {
	data, err := readFile(l.path)
	if err != nil {
		l.seen = nil
		return nil, err
	}
	unchanged := l.seen != nil && bytes.Equal(data, l.seen)
	l.seen = data
	if l.restless++; unchanged {
		l.restless = 0
	}
	if l.restless > maxRestless {
		return nil, fmt.Errorf("it has changed between any two of the last %d looks, and counts only when two find the same: write it less often", maxRestless)
	}
	if !unchanged || l.last != nil && bytes.Equal(data, l.last) {
		return nil, l.fault
	}
	l.last = data
	return data, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err == nil && len(data) > maxFileSize {
		err = fmt.Errorf("the file is larger than %d bytes", maxFileSize)
	}
	return data, err
}

// replace has the engine know now in place of before.
func (s *Services) replace(before, now state) {
	for n, it := range now.slices {
		s.engine.UpsertSlice(it)
		delete(before.slices, n)
	}
	for n, it := range now.services {
		s.engine.UpsertService(it)
		s.checks.set(n, it.HealthPort)
		delete(before.services, n)
	}
	for n := range before.services {
		s.engine.DeleteService(n)
		s.checks.set(n, 0)
	}
	for n := range before.slices {
		s.engine.DeleteSlice(n)
	}
	s.noteExcess()
}

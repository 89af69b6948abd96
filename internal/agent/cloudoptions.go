package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/agent/instance"
)

// CloudOptions count where pods have addresses of a cloud.
type CloudOptions struct {
	// Wanted is what this node is to have of it.
	Wanted instance.Wanted
	// MetadataEndpoint is the instance metadata service; empty for the cloud's own.
	MetadataEndpoint string
	// PodMetadata lets pods reach that service, which also serves the instance's credentials.
	PodMetadata bool
}

// Flags binds the options to command-line flags; the current values are the defaults shown.
func (o *CloudOptions) Flags(fs *pflag.FlagSet) {
	o.Wanted.Flags(fs)
	fs.StringVar(&o.MetadataEndpoint, "instance-metadata-endpoint", o.MetadataEndpoint, "with --ipam eni, azure or alibabacloud, URL of the instance metadata service, with an IP address; that of the cloud by default")
	fs.BoolVar(&o.PodMetadata, "allow-pod-instance-metadata", o.PodMetadata,
		"with --ipam eni, azure or alibabacloud, let pods reach the instance metadata service, which hands out the credentials of the instance")
}

// Validate checks every option and joins all faults in one error.
func (o *CloudOptions) Validate() error {
	err := instance.CheckEndpoint(o.MetadataEndpoint)
	if err != nil {
		err = fmt.Errorf("--instance-metadata-endpoint: %w", err)
	}
	return errors.Join(err, o.Wanted.Validate())
}

// validateCloud checks what counts only where pods have addresses of a cloud.
func (c *Config) validateCloud() error {
	switch {
	case !c.EnableIPv4:
		return fmt.Errorf("--ipam=%s: interfaces of the cloud have IPv4 addresses, and nodes need them: leave --enable-ipv4 on", c.IPAM)
	case c.EnableIPv6 && c.IPAM != addressing.ENI:
		return fmt.Errorf("--ipam=%s: the operator has IPv4 addresses assigned to nodes, and no others: set --enable-ipv6=false", c.IPAM)
	}
	return nil
}

// notForPods are addresses that pods do not reach.
func (c *Config) notForPods() []netip.Addr {
	if !addressing.OfCloud(c.IPAM) || c.PodMetadata {
		return nil
	}
	out := instance.Addresses(instance.Cloud(c.IPAM))
	if u, err := url.Parse(c.MetadataEndpoint); err == nil {
		if ip, err := netip.ParseAddr(u.Hostname()); err == nil && !ip.Unmap().IsLoopback() {
			out = append(out, ip.Unmap())
		}
	}
	return out
}

// describe finds out on which instance of a cloud this node runs. It returns what writes that, and
// what the node is to have by the flags and the CNI configuration, into the node's CiliumNode; nil
// where nodes are none of a cloud.
func (c *Config) describe(ctx context.Context, log *slog.Logger) (func(o *v2.CiliumNode, made bool), error) {
	if !addressing.OfCloud(c.IPAM) {
		return nil, nil
	}
	wanted, cloud := c.Wanted, instance.Cloud(c.IPAM)
	sections, err := c.CNI.Sections()
	if err == nil {
		err = errors.Join(wanted.Read(sections), wanted.Validate())
	}
	if err != nil {
		return nil, fmt.Errorf("--read-cni-conf: %w", err)
	}
	if len(wanted.StaticIPTags) > 0 && cloud != instance.AWS {
		return nil, fmt.Errorf("--ipam-static-ip-tags (ipam.static-ip-tags of the CNI configuration): the operator assigns public addresses with --ipam=eni only, and this is %s: remove them", c.IPAM)
	}
	facts, err := instance.Read(ctx, instance.Config{
		Cloud: cloud, Endpoint: c.MetadataEndpoint, Path: filepath.Join(c.StateDir, "state", "instance.json"), Boot: bootID(), Save: c.state.Write, Log: log,
	})
	if err != nil {
		return nil, err
	}
	log.Info("this node is an instance of a cloud", "instance", facts.ID, "type", facts.Type, "zone", facts.Zone)
	return func(o *v2.CiliumNode, _ bool) { wanted.Write(o, cloud, facts) }, nil
}

// bootID names this boot of the machine; "" if the kernel does not report it.
func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}

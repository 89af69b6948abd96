package loader

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/validate"
)

// settings turns cfg into the programs' .rodata, with defaults filled in. What depends on the sizes
// of maps is the caller's to add.
func settings(cfg datapath.Config) (fromPodConfig, error) {
	var errs validate.Errors
	c := fromPodConfig{
		NetnsCookie:   cfg.NetNSCookie,
		TunnelIfindex: uint32(cfg.TunnelIfIndex),
		HostIfindex:   uint32(cfg.HostIfIndex),
		NativeIfindex: uint32(cfg.NativeIfIndex),
		NodePort:      flag(cfg.NodePort),
		OtherDevices:  flag(len(cfg.OtherIfIndexes) > 0 && !cfg.Interfaces), // which implies the same
		Interfaces:    flag(cfg.Interfaces),
		NativeMtu:     uint16(min(cfg.NativeMTU, math.MaxUint16)),
		Tunnel:        flag(cfg.Tunnel),
		DualStack:     flag(cfg.DualStackWorld),
	}
	for _, i := range append([]int{cfg.TunnelIfIndex, cfg.HostIfIndex, cfg.NativeIfIndex}, cfg.OtherIfIndexes...) {
		errs.If(i < 0, "interface index %d is negative", i)
	}
	errs.If(cfg.NativeMTU < 0, "MTU of the native device %d is negative", cfg.NativeMTU)
	errs.If(cfg.Tunnel && cfg.TunnelIfIndex == 0, "tunnelling needs the index of the tunnel device")
	errs.If(cfg.Tunnel && cfg.TunnelPort == 0, "tunnelling needs the port of the tunnel, to which only nodes may send")
	errs.If(cfg.Interfaces && (cfg.Tunnel || cfg.NativeIfIndex == 0), "interfaces of a cloud need native routing, and the index of the native device")
	errs.If(cfg.NodePort && cfg.NativeIfIndex == 0, "services for clients outside of the cluster need the index of the native device")
	errs.If(len(cfg.OtherIfIndexes) > 0 && !cfg.NodePort, "other devices than the native one are for clients outside of the cluster, which are not load-balanced")
	if cfg.Tunnel {
		c.TunnelPort = uint32(maps.NetworkOrder(cfg.TunnelPort))
	}
	errs.If((cfg.CgroupRoot != "" || cfg.NativeIfIndex != 0) && cfg.NetNSCookie == 0, "the programs recognise packets of the node itself by the ID of its network namespace, which is missing")
	errs.If(len(cfg.HostMAC) != 0 && len(cfg.HostMAC) != 6, "hardware address of the host device %q is not 6 bytes long", cfg.HostMAC)
	copy(c.HostMac[:], cfg.HostMAC)
	errs.If(len(cfg.NativeMAC) != 0 && len(cfg.NativeMAC) != 6, "hardware address of the native device %q is not 6 bytes long", cfg.NativeMAC)
	copy(c.NativeMac[:], cfg.NativeMAC)
	loopback4, loopback6 := datapath.DefaultLoopbacks()
	if cfg.LoopbackIPv4.IsValid() {
		loopback4 = cfg.LoopbackIPv4
	}
	if cfg.LoopbackIPv6.IsValid() {
		loopback6 = cfg.LoopbackIPv6
	}
	var always uint8
	for _, a := range []struct {
		what string
		addr netip.Addr
		v4   bool
		to   *[16]uint8
		has  *uint8
	}{
		{"router IPv4", cfg.RouterIPv4, true, &c.Router4.B, &c.HasRouter4},
		{"router IPv6", cfg.RouterIPv6, false, &c.Router6.B, &c.HasRouter6},
		{"node IPv4", cfg.NodeIPv4, true, &c.Node4.B, &c.HasNode4},
		{"node IPv6", cfg.NodeIPv6, false, &c.Node6.B, &c.HasNode6},
		{"service loopback IPv4", loopback4, true, &c.Loopback4.B, &always},
		{"service loopback IPv6", loopback6, false, &c.Loopback6.B, &always},
	} {
		if !a.addr.IsValid() {
			continue
		}
		if a.addr.Is4() != a.v4 || a.addr.Is4In6() {
			errs.Add("%s %s is of the other family", a.what, a.addr)
			continue
		}
		*a.to, *a.has = a.addr.As16(), 1
	}

	if n := len(cfg.NotForPods); n > len(c.NotForPods) {
		errs.Add("%d addresses are not for pods, want at most %d", n, len(c.NotForPods))
	} else {
		c.NotForPodsCount = uint8(n)
		for i, a := range cfg.NotForPods {
			c.NotForPods[i].B = a.As16()
		}
	}

	c.Node4Translated, c.Node6Translated = flag(cfg.NodeIPv4Translated), flag(cfg.NodeIPv6Translated)

	ports := cfg.MasqueradePorts
	if ports == (datapath.PortRange{}) {
		ports = datapath.DefaultMasqueradePorts()
	}
	errs.If(ports.First < 1024 || ports.Count() < 1, "ports %d to %d for clients sent on to other nodes are not within 1024 to 65535", ports.First, ports.Last)
	c.MasqueradeFirst, c.MasqueradePorts = ports.First, uint16(ports.Count())

	t, d := cfg.CTTimeouts, datapath.DefaultCTTimeouts()
	for _, l := range []struct {
		what            string
		value, fallback time.Duration
		to              *uint32
	}{
		{"TCP", t.TCP, d.TCP, &c.TimeoutTcp},
		{"TCP before the handshake", t.TCPSyn, d.TCPSyn, &c.TimeoutTcpSyn},
		{"TCP after the end", t.TCPFin, d.TCPFin, &c.TimeoutTcpFin},
		{"other flows", t.Any, d.Any, &c.TimeoutAny},
	} {
		l.value = cmp.Or(l.value, l.fallback)
		// Beyond half the range of a tick counter, before and after could no longer be
		// distinguished.
		if l.value < 0 || l.value > 10*365*24*time.Hour {
			errs.Add("lifetime of %s is %s, want 0 to ten years", l.what, l.value)
			continue
		}
		*l.to = uint32((l.value + maps.TickNanoseconds - 1) / maps.TickNanoseconds)
	}
	c.AggregationFlags = cfg.Aggregation.TCPFlags
	if every := cfg.Aggregation.Interval; every < 0 || every > 24*time.Hour {
		errs.Add("interval between samples of flows is %s, want 0 to a day", every)
	} else {
		c.AggregationInterval = uint32((every + maps.TickNanoseconds - 1) / maps.TickNanoseconds)
	}
	if len(errs) > 0 {
		return c, fmt.Errorf("datapath settings: %w", errs.Err())
	}
	return c, nil
}

func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/hawser-net/hawser/api/rest"
)

// Bounds of a delegated IPAM plugin.
const (
	// delegateTimeout is above what a DHCP client needs for an answer, and below what runtimes
	// wait.
	delegateTimeout = 45 * time.Second
	// delegateGrace is how long after its end a child of it may hold its output open.
	delegateGrace  = time.Second
	delegateOutput = 1 << 20
)

// ipamModeDelegated is the agent's mode in which another plugin assigns the addresses.
const ipamModeDelegated = "delegated-plugin"

// delegated checks that plugin and agent agree on who gives addresses: two that both do would give
// one address to two pods. It returns whether it is the plugin that ipam.type names.
func (c netConf) delegated(agent rest.DaemonConfigurationStatus) (bool, error) {
	switch mode := c.IPAM.mode(); {
	case agent.IPAMMode == ipamModeDelegated && mode == "":
		return false, fmt.Errorf("the agent's --ipam is %s: name the plugin that gives addresses in ipam.type, such as host-local", ipamModeDelegated)
	case agent.IPAMMode != ipamModeDelegated && mode != "":
		return false, fmt.Errorf("ipam type %q: the agent gives the addresses (its --ipam is %q); remove ipam, or start the agent with --ipam=%s",
			mode, agent.IPAMMode, ipamModeDelegated)
	case mode == needsInterface:
		return false, fmt.Errorf("ipam type %q is not supported: it asks for an address over the pod's interface, which is made when the pod has one; "+
			"name a plugin that needs no interface, such as host-local", mode)
	}
	return c.IPAM.mode() != "", nil
}

// needsInterface is the IPAM plugin of the CNI project that is refused. Its requests are
// broadcasts, which would lead nowhere from a pod: its network ends at the node.
const needsInterface = "dhcp"

// delegate is the IPAM plugin that the configuration names.
type delegate struct {
	name string
	conf []byte // the whole network configuration, as the specification wants
}

// call runs a command of the plugin, which must end in time.
func (d delegate) call(ctx context.Context, command func(context.Context, string, []byte, invoke.Exec) error) error {
	ctx, cancel := context.WithTimeout(ctx, delegateTimeout)
	defer cancel()
	if err := command(ctx, d.name, d.conf, &delegateExec{}); err != nil {
		return delegateError(d.name, err)
	}
	return nil
}

// forget has the plugin free the addresses of an attachment that is not the one of this call. GC
// alone would not do: plugins may ignore it, as host-local does.
func (d delegate) forget(ctx context.Context, gone attachment) error {
	path := os.Getenv("CNI_PATH")
	args := &invoke.Args{Command: "DEL", ContainerID: gone.ContainerID, IfName: gone.IfName, Path: path}
	return d.call(ctx, func(ctx context.Context, name string, conf []byte, exec invoke.Exec) error {
		found, err := exec.FindInPath(name, filepath.SplitList(path))
		if err != nil {
			return err
		}
		return invoke.ExecPluginWithoutResult(ctx, found, conf, args, exec)
	})
}

// delegateError keeps the code of the plugin's own errors, which the runtime acts by.
func delegateError(name string, err error) error {
	var theirs *cnitypes.Error
	if errors.As(err, &theirs) && theirs.Code != 0 {
		return cnitypes.NewError(theirs.Code, "IPAM plugin "+name+": "+theirs.Msg, theirs.Details)
	}
	return fail(cnitypes.ErrInternal, "IPAM plugin "+name, err)
}

// allocateBy has the plugin of the configuration give addresses. Whatever becomes of that, undoing
// has it take them back: also a plugin that was killed, or that answered nonsense, may hold some.
func (a *adding) allocateBy(ctx context.Context, d delegate, node rest.DaemonConfigurationStatus) (rest.IPAMResponse, []address, cnitypes.DNS, error) {
	none := func(err error) (rest.IPAMResponse, []address, cnitypes.DNS, error) {
		return rest.IPAMResponse{}, nil, cnitypes.DNS{}, err
	}
	// The plugin forgets an address by the attachment: that of a pod that runs must not be undone.
	if err := retrying(ctx, notNow, a.notAttached); err != nil {
		return none(agentError("no addresses are asked for", err))
	}
	a.undo = append(a.undo, func(ctx context.Context) error {
		if a.unsure {
			return errors.New("the addresses are not given back while the agent may have an endpoint with them; DEL does that")
		}
		return d.call(context.WithoutCancel(ctx), invoke.DelegateDel) // it has a time of its own
	})
	var generic cnitypes.Result
	err := d.call(ctx, func(ctx context.Context, name string, conf []byte, exec invoke.Exec) error {
		var err error
		generic, err = invoke.DelegateAdd(ctx, name, conf, exec)
		return err
	})
	if err != nil {
		return none(err)
	}
	result, err := current.NewResultFromResult(generic)
	if err == nil {
		resp := rest.IPAMResponse{HostAddressing: node.Addressing}
		var addrs []address
		if addrs, err = given(result, &resp); err == nil {
			return resp, addrs, result.DNS, nil
		}
	}
	return none(fail(cnitypes.ErrInternal, "the answer of IPAM plugin "+d.name+" is invalid", err))
}

// given reads the addresses of a result into resp and returns them, IPv6 first. Routes and gateways
// of the result do not count: all that leaves a pod goes through the node's router address.
func given(result *current.Result, resp *rest.IPAMResponse) ([]address, error) {
	var v4, v6 address
	for _, c := range result.IPs {
		if c == nil {
			return nil, errors.New("an address is missing")
		}
		ip, ok := netip.AddrFromSlice(c.Address.IP)
		if !ok || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLoopback() {
			return nil, fmt.Errorf("%s is no address for a pod", c.Address.IP)
		}
		slot, router, text := &v6, resp.HostAddressing.IPv6.IP, &resp.Address.IPv6
		if ip = ip.Unmap(); ip.Is4() {
			slot, router, text = &v4, resp.HostAddressing.IPv4.IP, &resp.Address.IPv4
		}
		if slot.ip.IsValid() {
			return nil, fmt.Errorf("%s and %s are of one family: a pod has one address of each", slot.ip, ip)
		}
		gateway, err := parseIP(router, ip.Is6())
		if err != nil {
			return nil, fmt.Errorf("%s is of a family that this node does not have: %w", ip, err)
		}
		*slot, *text = address{ip: ip, router: gateway}, ip.String()
	}
	addrs := slices.DeleteFunc([]address{v6, v4}, func(a address) bool { return !a.ip.IsValid() })
	if len(addrs) == 0 {
		return nil, errors.New("it has no address")
	}
	return addrs, nil
}

// delegateExec runs plugins as a process group that ends with its context, and reads a bounded part
// of their output.
type delegateExec struct{ version.PluginDecoder }

// FindInPath finds a plugin, and never this one: it would call itself without end.
func (*delegateExec) FindInPath(plugin string, paths []string) (string, error) {
	path, err := invoke.FindInPath(plugin, paths)
	if err != nil {
		return "", err
	}
	theirs, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if own, err := os.Stat("/proc/self/exe"); err != nil || os.SameFile(own, theirs) {
		return "", fmt.Errorf("%s is this plugin itself and gives no addresses: name an IPAM plugin in ipam.type", path)
	}
	return path, nil
}

// ExecPlugin runs a plugin and returns what it prints.
func (*delegateExec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Stdin = environ, bytes.NewReader(stdin)
	out, complaint := &clipped{max: delegateOutput}, &clipped{max: 4096}
	cmd.Stdout, cmd.Stderr = out, complaint
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = delegateGrace
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("it did not end in time and was killed: %w", ctx.Err())
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil // it is done; a child of it holds its output
	case err != nil:
		var theirs cnitypes.Error
		if json.Unmarshal(out.text.Bytes(), &theirs) == nil && theirs.Msg != "" {
			return nil, &theirs
		}
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(complaint.text.String()))
	}
	if out.cut {
		return nil, fmt.Errorf("it prints more than %d bytes", delegateOutput)
	}
	return out.text.Bytes(), nil
}

// clipped keeps the first bytes of what is written.
type clipped struct {
	text bytes.Buffer
	max  int
	cut  bool
}

func (c *clipped) Write(b []byte) (int, error) {
	room := min(len(b), c.max-c.text.Len())
	c.cut = c.cut || room < len(b)
	c.text.Write(b[:room])
	return len(b), nil
}

package kube

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// need is a program or file of a Debian package.
type need struct{ what, packages string }

// needs lists what a cluster takes from the machine.
func needs(cfg Config) []need {
	all := []need{{"nsenter", "util-linux"}}
	if cfg.Mode == APIOnly {
		return all
	}
	all = append(all, need{"runc", "runc"}, need{"iptables", "iptables"}, need{"conntrack", "conntrack"}, need{"nft", "nftables"}, need{"ip", "iproute2"},
		// For the images.
		need{"gcc", "gcc libc6-dev"}, need{"busybox", "busybox-static"}, need{"curl", "curl"}, need{"ss", "iproute2"}, need{"ipcs", "util-linux"})
	if cfg.CNI == PTP {
		all = append(all, need{filepath.Join(debianPlugins, "ptp"), "containernetworking-plugins"})
	}
	return all
}

// missing returns which of the needs are not there, and the packages that have them.
func missing(all []need) (what, packages []string) {
	for _, n := range all {
		err := error(nil)
		if filepath.IsAbs(n.what) {
			_, err = os.Stat(n.what)
		} else {
			_, err = exec.LookPath(n.what)
		}
		if err == nil {
			continue
		}
		what = append(what, n.what)
		for p := range strings.FieldsSeq(n.packages) {
			if !slices.Contains(packages, p) {
				packages = append(packages, p)
			}
		}
	}
	return what, packages
}

// ensurePackages sees that everything is there that comes from Debian packages: it installs what is
// missing if it may, and names it otherwise.
func (c *Cluster) ensurePackages(ctx context.Context) error {
	what, packages := missing(needs(c.cfg))
	if len(what) == 0 {
		return nil
	}
	how := "apt-get install --no-install-recommends " + strings.Join(packages, " ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%s: not on this machine; on Debian: %s", strings.Join(what, ", "), how)
	}
	if !c.cfg.Install {
		return fmt.Errorf("%s: not on this machine; --yes installs it, or: %s", strings.Join(what, ", "), how)
	}
	c.say("installing %s", strings.Join(packages, " "))
	install := append([]string{"install", "-qy", "--no-install-recommends"}, packages...)
	if _, err := c.apt(ctx, install...); err == nil { // the lists may be fresh enough
		return nil
	}
	if out, err := c.apt(ctx, "update", "-q"); err != nil {
		return fmt.Errorf("apt-get update: %w: %s", err, tail(out))
	}
	if out, err := c.apt(ctx, install...); err != nil {
		return fmt.Errorf("%s: %w: %s", how, err, tail(out))
	}
	return nil
}

func (c *Cluster) apt(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func tail(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-8):], "\n  ")
}

package confdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// AcceptFlag is the option that names protections which a program may go without; see
// [Unprotected].
const AcceptFlag = "accept-without"

// protection is an option of Cilium for a protection that the product does not have. Who sets it
// counts on it, so that it must not be passed over like an option that only tunes.
type protection struct {
	option string
	// neutral are the values that protect nothing.
	neutral []string
	// lost is what would go unprotected, instead is what there is in its place.
	lost, instead string
}

const encryptBelow = "encrypt below the pods (WireGuard or IPsec between the nodes, made by the network or the operating system), or in the applications"

// protections returns all of them, by option.
func protections() []protection {
	off := []string{"false", "0", "f", "disabled"}
	return []protection{
		{"enable-encryption-strict-mode", off, "traffic between nodes that could not be encrypted would not be dropped", encryptBelow},
		{"enable-encryption-strict-mode-egress", off, "traffic between nodes that could not be encrypted would not be dropped", encryptBelow},
		{"enable-encryption-strict-mode-ingress", off, "traffic that arrives without encryption would not be dropped", encryptBelow},
		{"enable-host-firewall", off, "no policy would be enforced for the node itself (nodeSelector)", "a firewall of the operating system for the node's own ports"},
		{"enable-ipsec", off, "traffic between nodes would travel in the clear", encryptBelow},
		{"enable-ipsec-encrypted-overlay", off, "traffic between nodes would travel in the clear", encryptBelow},
		{"enable-local-redirect-policy", off, "pods would reach what such policies keep from them, such as the metadata of a cloud, and not the local proxy",
			"CiliumNetworkPolicies that deny those addresses"},
		{"enable-wireguard", off, "traffic between nodes would travel in the clear", encryptBelow},
		{"enable-xdp-prefilter", off, "prefixes would not be filtered before the node's own stack", "CIDR rules of policies, and a firewall of the operating system for the node"},
		{"enable-ztunnel", off, "traffic between pods would travel in the clear and not be authenticated", encryptBelow},
		{"encrypt-node", off, "traffic of the nodes themselves would travel in the clear", encryptBelow},
		{"encryption-strict-mode-cidr", nil, "traffic between nodes that could not be encrypted would not be dropped", encryptBelow},
		{"mesh-auth-mutual-enabled", off, "peers would not be authenticated", "leave authentication out of policies: those that ask for it are refused, and isolate what they select"},
		{"bpf-lb-source-range-all-types", off, "loadBalancerSourceRanges would count for load balancers' addresses only, not for node ports and cluster addresses",
			"policies for the pods behind such services"},
		{"policy-cidr-match-mode", nil, "a CIDR rule would not match nodes, so that one that denies would let them in", "the entities host and remote-node in place of such prefixes"},
		{"prefilter-device", []string{"undefined", "none"}, "prefixes would not be filtered before the node's own stack",
			"CIDR rules of policies, and a firewall of the operating system for the node"},
	}
}

// Unprotected reports, joined, every option of Cilium that the environment or the directory of
// [FlagName] sets, that protects something, and that the product does not have: a program that
// started all the same would leave open what the user believes to be closed. Each error names the
// option and the ways out, one of which is to name the option with [AcceptFlag], if fs has that
// flag. Call it after [Load].
func Unprotected(fs *pflag.FlagSet, getenv func(string) string) error {
	dir := ""
	if f := fs.Lookup(FlagName); f != nil {
		dir = f.Value.String() // Load has set it
	}
	var accepted []string
	if f := fs.Lookup(AcceptFlag); f != nil {
		if list, ok := f.Value.(pflag.SliceValue); ok {
			accepted = list.GetSlice()
		}
	}
	var errs []error
	for _, p := range protections() {
		if fs.Lookup(p.option) != nil {
			continue // the program knows it
		}
		value, source, err := setting(p.option, dir, getenv)
		if err != nil {
			errs = append(errs, err)
		}
		if value == "" || slices.Contains(p.neutral, strings.ToLower(value)) || slices.Contains(accepted, p.option) {
			continue
		}
		errs = append(errs, fmt.Errorf("%s: %s=%s has no effect here: %s. Remove it and %s; or name it with --%s to go without",
			source, p.option, value, p.lost, p.instead, AcceptFlag))
	}
	for _, name := range accepted {
		if !slices.ContainsFunc(protections(), func(p protection) bool { return p.option == name }) {
			errs = append(errs, fmt.Errorf("--%s: %q is none of the options that can be gone without", AcceptFlag, name))
		}
	}
	return errors.Join(errs...)
}

// setting returns the value of an option that is no flag, and where it comes from.
func setting(option, dir string, getenv func(string) string) (value, source string, err error) {
	name := envName(option)
	if value := strings.TrimSpace(getenv(name)); value != "" {
		return value, "environment variable " + name, nil
	}
	if dir == "" {
		return "", "", nil
	}
	path := filepath.Join(dir, option)
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.IsDir() {
		return "", "", nil
	}
	if err == nil && info.Size() > maxOptionFile {
		err = fmt.Errorf("%s: larger than %d bytes", path, maxOptionFile)
	}
	if err != nil {
		return "", path, err
	}
	data, err := os.ReadFile(path)
	return strings.TrimSpace(string(data)), path, err
}

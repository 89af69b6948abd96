package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
)

// policyEnforcement is the option that is a field of its own in the API.
const policyEnforcement = "policy-enforcement"

func (a *app) configCommand() *cobra.Command {
	var all bool
	c := a.group("config", "Show and change the agent's options",
		"Show the options that can change at run time. get shows one, set changes them.",
		a.configGetCommand(), a.configSetCommand())
	c.Example = `  hawser config
  hawser config --all
  hawser config set policy-enforcement=always`
	c.Flags().BoolVar(&all, "all", false, "also options that are fixed while the agent runs, and facts of the node")
	out := addOutput(c)
	unknown := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknown(cmd, args)
		}
		return a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			cfg, err := c.Config(cmd.Context())
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), cfg, func(w io.Writer) error { return a.writeConfig(w, cfg, all) })
		})(cmd, args)
	}
	return c
}

// options returns the options that can change, policy-enforcement among them.
func options(spec rest.DaemonConfigurationSpec) map[string]string {
	out := map[string]string{}
	maps.Copy(out, spec.Options)
	if spec.PolicyEnforcement != "" {
		out[policyEnforcement] = string(spec.PolicyEnforcement)
	}
	return out
}

// inForce returns what the agent has realized, or what it was told if it says nothing of that.
func inForce(cfg rest.DaemonConfiguration) map[string]string {
	if o := options(cfg.Status.Realized); len(o) > 0 {
		return o
	}
	return options(cfg.Spec)
}

func (a *app) writeConfig(w io.Writer, cfg rest.DaemonConfiguration, all bool) error {
	section := func(title string, values map[string]string) error {
		t := a.table(title, "VALUE")
		for _, name := range slices.Sorted(maps.Keys(values)) {
			t.row(name, values[name])
		}
		return t.write(w)
	}
	if err := section("OPTION", inForce(cfg)); err != nil || !all {
		return err
	}
	if len(cfg.Status.Immutable) > 0 {
		fmt.Fprintln(w)
		if err := section("FIXED OPTION", cfg.Status.Immutable); err != nil {
			return err
		}
	}
	st := cfg.Status
	f := a.facts()
	for _, family := range []struct {
		name string
		el   rest.NodeAddressingElement
	}{{"IPv4", st.Addressing.IPv4}, {"IPv6", st.Addressing.IPv6}} {
		if family.el.Enabled {
			f.add(family.name+" router", family.el.IP)
			f.add(family.name+" pods", family.el.AllocRange)
		}
	}
	f.add("IPAM", st.IPAMMode)
	f.add("Datapath", string(st.DatapathMode))
	f.add("Device MTU", number(st.DeviceMTU))
	f.add("Route MTU", number(st.RouteMTU))
	f.add("KVStore", st.KVStoreConfiguration.Type)
	for _, name := range slices.Sorted(maps.Keys(st.KVStoreConfiguration.Options)) {
		f.add("  "+name, st.KVStoreConfiguration.Options[name])
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return f.write(w)
}

// number is n for people: nothing for 0.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func (a *app) configGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "get OPTION",
		Short:   "Show one option",
		Example: "  hawser config get policy-enforcement",
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: a.complete(func(ctx context.Context, c *client.Client) ([]string, error) {
			cfg, err := c.Config(ctx)
			return slices.Sorted(maps.Keys(inForce(cfg))), err
		}),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			cfg, err := c.Config(cmd.Context())
			if err != nil {
				return err
			}
			value, ok := inForce(cfg)[args[0]]
			if !ok {
				value, ok = cfg.Status.Immutable[args[0]]
			}
			if !ok {
				return &codedError{ExitNotFound, fmt.Errorf("the agent has no option %q; `hawser config --all` lists them", args[0])}
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), printable(value))
			return err
		}),
	}
}

func (a *app) configSetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "set OPTION=VALUE...",
		Short: "Change options while the agent runs",
		Long: `Change options while the agent runs. All of them are changed or none.

policy-enforcement takes default (endpoints that a policy selects), always or never.
PolicyAuditMode takes Enabled (what policy refuses passes and is told of) or Disabled. Both are what the
agent's configuration says when it starts again.`,
		Example: `  hawser config set policy-enforcement=always
  hawser config set PolicyAuditMode=Enabled`,
		Args: cobra.MinimumNArgs(1),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			spec, err := parseOptions(args)
			if err != nil {
				return err
			}
			return c.PatchConfig(cmd.Context(), spec)
		}),
	}
}

func parseOptions(args []string) (rest.DaemonConfigurationSpec, error) {
	spec := rest.DaemonConfigurationSpec{}
	seen := map[string]bool{}
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		switch {
		case !ok || name == "":
			return spec, usagef("%q is not OPTION=VALUE", arg)
		case seen[name]:
			return spec, usagef("option %s is given twice", name)
		}
		seen[name] = true
		if name == policyEnforcement || name == "PolicyEnforcement" {
			if spec.PolicyEnforcement != "" {
				return spec, usagef("option %s is given twice", policyEnforcement)
			}
			if spec.PolicyEnforcement = rest.PolicyEnforcement(value); !spec.PolicyEnforcement.Valid() {
				return spec, &usageError{errors.New(policyEnforcement + " takes default, always or never")}
			}
			continue
		}
		if spec.Options == nil {
			spec.Options = rest.ConfigurationMap{}
		}
		spec.Options[name] = value
	}
	return spec, nil
}

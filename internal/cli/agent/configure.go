package agent

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
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
)

// policyEnforcement is the option that is a field of its own in the API.
const policyEnforcement = "policy-enforcement"

// ConfigCommand shows and changes the options of the agent.
func ConfigCommand(a *command.App) *cobra.Command {
	var all bool
	c := command.Group("config", "Show and change the agent's options",
		"Show the options that can change at run time. get shows one, set changes them.",
		configGetCommand(a), configSetCommand(a))
	c.Example = `  hawser config
  hawser config --all
  hawser config set policy-enforcement=always`
	c.Flags().BoolVar(&all, "all", false, "also options that are fixed while the agent runs, and facts of the node")
	out := output.AddFlag(c)
	unknown := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknown(cmd, args)
		}
		return a.WithClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			cfg, err := c.Config(cmd.Context())
			if err != nil {
				return err
			}
			return out.Print(cmd.OutOrStdout(), cfg, func(w io.Writer) error { return writeConfig(a, w, cfg, all) })
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

// inForce returns the agent's realized settings, or the configured ones if it does not report them.
func inForce(cfg rest.DaemonConfiguration) map[string]string {
	if o := options(cfg.Status.Realized); len(o) > 0 {
		return o
	}
	return options(cfg.Spec)
}

func writeConfig(a *command.App, w io.Writer, cfg rest.DaemonConfiguration, all bool) error {
	section := func(title string, values map[string]string) error {
		t := a.Table(title, "VALUE")
		for _, name := range slices.Sorted(maps.Keys(values)) {
			t.Row(name, values[name])
		}
		return t.Write(w)
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
	f := a.Facts()
	for _, family := range []struct {
		name string
		el   rest.NodeAddressingElement
	}{{"IPv4", st.Addressing.IPv4}, {"IPv6", st.Addressing.IPv6}} {
		if family.el.Enabled {
			f.Add(family.name+" router", family.el.IP)
			f.Add(family.name+" pods", family.el.AllocRange)
		}
	}
	f.Add("IPAM", st.IPAMMode)
	f.Add("Datapath", string(st.DatapathMode))
	f.Add("Device MTU", number(st.DeviceMTU))
	f.Add("Route MTU", number(st.RouteMTU))
	f.Add("KVStore", st.KVStoreConfiguration.Type)
	for _, name := range slices.Sorted(maps.Keys(st.KVStoreConfiguration.Options)) {
		f.Add("  "+name, st.KVStoreConfiguration.Options[name])
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return f.Write(w)
}

// number is n for people: nothing for 0.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func configGetCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:     "get OPTION",
		Short:   "Show one option",
		Example: "  hawser config get policy-enforcement",
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: a.Complete(func(ctx context.Context, c *client.Client) ([]string, error) {
			cfg, err := c.Config(ctx)
			return slices.Sorted(maps.Keys(inForce(cfg))), err
		}),
		RunE: a.WithClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			cfg, err := c.Config(cmd.Context())
			if err != nil {
				return err
			}
			value, ok := inForce(cfg)[args[0]]
			if !ok {
				value, ok = cfg.Status.Immutable[args[0]]
			}
			if !ok {
				return exitcode.With(exitcode.NotFound, fmt.Errorf("the agent has no option %q; `hawser config --all` lists them", args[0]))
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), output.Printable(value))
			return err
		}),
	}
}

func configSetCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "set OPTION=VALUE...",
		Short: "Change options while the agent runs",
		Long: `Change options while the agent runs. All of them are changed or none.

policy-enforcement takes default (endpoints that a policy selects), always or never.
PolicyAuditMode takes Enabled (packets that policy refuses pass, and are reported) or Disabled. Both are what the
agent's configuration says when it starts again.`,
		Example: `  hawser config set policy-enforcement=always
  hawser config set PolicyAuditMode=Enabled`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeOptions(a),
		RunE: a.WithClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			spec, err := parseOptions(args)
			if err != nil {
				return err
			}
			return c.PatchConfig(cmd.Context(), spec)
		}),
	}
}

// completeOptions offers the options that can change, with each of their values.
func completeOptions(a *command.App) cobra.CompletionFunc {
	return a.Complete(func(ctx context.Context, c *client.Client) ([]string, error) {
		cfg, err := c.Config(ctx)
		var out []string
		for _, name := range slices.Sorted(maps.Keys(inForce(cfg))) {
			values := []string{"Disabled", "Enabled"}
			if name == policyEnforcement {
				values = []string{string(rest.PolicyEnforcementAlways), string(rest.PolicyEnforcementDefault), string(rest.PolicyEnforcementNever)}
			}
			for _, value := range values {
				out = append(out, name+"="+value)
			}
		}
		return out, err
	})
}

func parseOptions(args []string) (rest.DaemonConfigurationSpec, error) {
	spec := rest.DaemonConfigurationSpec{}
	seen := map[string]bool{}
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		switch {
		case !ok || name == "":
			return spec, exitcode.Usagef("%q is not OPTION=VALUE", arg)
		case seen[name]:
			return spec, exitcode.Usagef("option %s is given twice", name)
		}
		seen[name] = true
		if name == policyEnforcement || name == "PolicyEnforcement" {
			if spec.PolicyEnforcement != "" {
				return spec, exitcode.Usagef("option %s is given twice", policyEnforcement)
			}
			if spec.PolicyEnforcement = rest.PolicyEnforcement(value); !spec.PolicyEnforcement.Valid() {
				return spec, exitcode.With(exitcode.Usage, errors.New(policyEnforcement+" takes default, always or never"))
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

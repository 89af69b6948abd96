package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/internal/admin/usage"
	"github.com/hawser-net/hawser/internal/identity"
)

// whyTimeout bounds the look at the cluster's objects.
const whyTimeout = 2 * time.Minute

func (a *app) identityWhyCommand() *cobra.Command {
	var kubeconfig, kubeContext string
	c := &cobra.Command{
		Use:   "why ID|POD",
		Short: "Show who uses an identity, and why it is there still",
		Long: `Show what an identity of Kubernetes stands for, which endpoints and slices name it,
which pods have its labels, and why it is not collected. A pod is named
namespace/name; without a namespace it is one of default.

It asks the API server, not the agent, with the kubeconfig file that kubectl uses,
or with the service account of the pod that it runs in.`,
		Example: `  hawser identity why 18582
  hawser identity why shop/web-0
  hawser identity why 18582 -o jsonpath='{.reasons}'`,
		Args: cobra.ExactArgs(1),
	}
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `file`; by default those of KUBECONFIG, or ~/.kube/config")
	c.Flags().StringVar(&kubeContext, "context", "", "`name` of the context in it; the current one by default")
	out := addOutput(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		client, err := usage.Connect(a.kubeconfigs(kubeconfig), kubeContext)
		if err != nil {
			return &codedError{ExitUnreachable, err}
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), whyTimeout)
		defer cancel()
		world, err := usage.Read(ctx, client)
		if err != nil {
			return &codedError{ExitUnreachable, fmt.Errorf("%s: %w", client.Host(), err)}
		}
		answer, err := world.Why(args[0])
		if errors.Is(err, usage.ErrNotFound) {
			return &codedError{ExitNotFound, err}
		}
		if err != nil {
			return err
		}
		return out.print(cmd.OutOrStdout(), answer, func(w io.Writer) error { return a.writeWhy(w, answer) })
	}
	return c
}

// shownUsers bounds how many users of an identity are shown to people; -o json has all.
const shownUsers = 10

func (a *app) writeWhy(w io.Writer, x usage.Answer) error {
	f := a.facts()
	f.add("Pod", x.Pod)
	if x.ID != 0 {
		f.add("Identity", x.ID.String())
	}
	f.add("Labels", x.Labels)
	if !x.Created.IsZero() {
		f.add("Exists since", x.Created.Format(timeFormat))
	}
	var duplicates []string
	for _, id := range x.Duplicates {
		duplicates = append(duplicates, id.String())
	}
	f.add("Duplicates", duplicates)
	var endpoints, slices, waiting []string
	for _, ep := range x.Endpoints {
		text := fmt.Sprintf("%s/%s on %s since %s", ep.Namespace, ep.Name, ep.Node, ep.Since.Format(timeFormat))
		if ep.Gone {
			text = fmt.Sprintf("%s/%s since %s, whose pod is gone", ep.Namespace, ep.Name, ep.Since.Format(timeFormat))
		}
		endpoints = append(endpoints, text)
	}
	for _, s := range x.Slices {
		slices = append(slices, fmt.Sprintf("%s (%s): %d", s.Name, s.Namespace, s.Entries))
	}
	for _, p := range x.Waiting {
		text := fmt.Sprintf("%s/%s", p.Namespace, p.Name)
		if p.Node != "" {
			text += " on " + p.Node
		}
		if p.Told != identity.Unknown {
			text += ", which has identity " + p.Told.String()
		}
		waiting = append(waiting, text)
	}
	f.add("CiliumEndpoints", clipped(endpoints))
	f.add("Slices", clipped(slices))
	f.add("Pods with its labels", clipped(waiting))
	f.add("Why", x.Reasons)
	return f.write(w)
}

// clipped shortens a list for people.
func clipped(list []string) []string {
	if len(list) <= shownUsers {
		return list
	}
	return append(list[:shownUsers:shownUsers], fmt.Sprintf("and %d more", len(list)-shownUsers))
}

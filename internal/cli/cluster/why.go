package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/admin/usage"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/identity"
)

// whyTimeout bounds the look at the cluster's objects.
const whyTimeout = 2 * time.Minute

// IdentityWhyCommand shows who uses an identity.
func IdentityWhyCommand(a *command.App) *cobra.Command {
	var kube command.Kubeconfig
	c := &cobra.Command{
		Use:   "why ID|POD",
		Short: "Show what uses an identity, and why it still exists",
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
	c.ValidArgsFunction = completeIdentities(a, &kube)
	kube.AddFlags(a, c)
	out := output.AddFlag(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		files, err := kube.Files(a)
		if err != nil {
			return err
		}
		client, err := usage.Connect(files, kube.Context)
		if err != nil {
			return exitcode.With(exitcode.Unreachable, err)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), whyTimeout)
		defer cancel()
		world, err := usage.Read(ctx, client)
		if err != nil {
			return exitcode.With(exitcode.Unreachable, fmt.Errorf("%s: %w", client.Host(), err))
		}
		answer, err := world.Why(args[0])
		if errors.Is(err, usage.ErrNotFound) {
			return exitcode.With(exitcode.NotFound, err)
		}
		if err != nil {
			return err
		}
		return out.Print(cmd.OutOrStdout(), answer, func(w io.Writer) error { return writeWhy(a, w, answer) })
	}
	return c
}

// completeIdentities offers the identities that the API server has, explained by their labels.
func completeIdentities(a *command.App, kube *command.Kubeconfig) cobra.CompletionFunc {
	return command.Completions(func(ctx context.Context) ([]string, error) {
		files, err := kube.Files(a)
		if err != nil {
			return nil, err
		}
		client, err := usage.Connect(files, kube.Context)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		// Version 0 asks for what the server has cached: completions need not be the latest.
		list, err := client.Metadata.Resource(v2.SchemeGroupVersion().WithResource(v2.ResourceIdentities)).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, err
		}
		var out []string
		for _, id := range list.Items {
			var labels []string
			for k, v := range id.Labels {
				labels = append(labels, k+"="+v)
			}
			out = append(out, command.Described(id.Name, strings.Join(slices.Sorted(slices.Values(labels)), " ")))
		}
		return out, nil
	})
}

// shownUsers bounds how many users of an identity are shown to people; -o json has all.
const shownUsers = 10

func writeWhy(a *command.App, w io.Writer, x usage.Answer) error {
	f := a.Facts()
	f.Add("Pod", x.Pod)
	if x.ID != 0 {
		f.Add("Identity", x.ID.String())
	}
	f.Add("Labels", x.Labels)
	if !x.Created.IsZero() {
		f.Add("Exists since", x.Created.Format(output.TimeFormat))
	}
	var duplicates []string
	for _, id := range x.Duplicates {
		duplicates = append(duplicates, id.String())
	}
	f.Add("Duplicates", duplicates)
	var endpoints, inSlices, waiting []string
	for _, ep := range x.Endpoints {
		text := fmt.Sprintf("%s/%s on %s since %s", ep.Namespace, ep.Name, ep.Node, ep.Since.Format(output.TimeFormat))
		if ep.Gone {
			text = fmt.Sprintf("%s/%s since %s, whose pod is gone", ep.Namespace, ep.Name, ep.Since.Format(output.TimeFormat))
		}
		endpoints = append(endpoints, text)
	}
	for _, s := range x.Slices {
		inSlices = append(inSlices, fmt.Sprintf("%s (%s): %d", s.Name, s.Namespace, s.Entries))
	}
	for _, p := range x.Waiting {
		text := fmt.Sprintf("%s/%s", p.Namespace, p.Name)
		if p.Node != "" {
			text += " on " + p.Node
		}
		if p.Named != identity.Unknown {
			text += ", which has identity " + p.Named.String()
		}
		waiting = append(waiting, text)
	}
	f.Add("CiliumEndpoints", clipped(endpoints))
	f.Add("Slices", clipped(inSlices))
	f.Add("Pods with its labels", clipped(waiting))
	f.Add("Why", x.Reasons)
	return f.Write(w)
}

// clipped shortens a list for people.
func clipped(list []string) []string {
	if len(list) <= shownUsers {
		return list
	}
	return append(list[:shownUsers:shownUsers], fmt.Sprintf("and %d more", len(list)-shownUsers))
}

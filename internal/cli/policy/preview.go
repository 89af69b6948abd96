package policy

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/observe"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
)

// maxPreviewFiles bounds what is read before a server can refuse it, in bytes.
const maxPreviewFiles = 1 << 20

func previewCommand(a *command.App) *cobra.Command {
	q := &question{}
	var deletes []string
	var since string
	var connections, pairs uint32
	c := &cobra.Command{
		Use:   "preview [FILE...]",
		Short: "Show what other policies would change",
		Long: `Show what other policies would deny and allow: of the connections that were recorded
recently, and between all pods of the cluster. Nothing is changed.

FILE holds policies, YAML or JSON: NetworkPolicy, CiliumNetworkPolicy, their clusterwide
kind and ClusterNetworkPolicy. "-" is the standard input, and a directory all its files.
A policy replaces the one of the same kind, namespace and name that is in force.

An agent knows the connections of its own node, a relay (--server) those of all nodes.
The pairs below cover connections that were not recorded.

The exit code is 0 if no recorded connection would be denied, 5 if some would, and 6
if none would but the connections of some nodes are missing, because these did not
answer. Events that were lost do not change it: they were never recorded.`,
		Example: `  hawser policy preview deny-all.yaml
  hawser policy preview policies/ --delete shop/old
  kubectl get cnp -n shop db -o yaml | hawser policy preview - --server 192.0.2.7:4245`,
	}
	q.flags(c)
	c.Flags().StringSliceVar(&deletes, "delete", nil, "`policies` that would go: [kind/]namespace/name, or [kind/]name of one of the whole cluster")
	c.Flags().StringVar(&since, "since", "", "only connections seen after this `time`: RFC 3339, or so long ago as in 10m")
	c.Flags().Uint32Var(&connections, "connections", 0, "show at most `n` connections of each sort (default 500)")
	c.Flags().Uint32Var(&pairs, "pairs", 0, "show at most `n` pairs (default 500)")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		req := &policypb.PreviewRequest{Connections: connections, Pairs: pairs}
		var err error
		if req.Since, err = observe.ParseWhen("since", since, time.Now()); err != nil {
			return err
		}
		if len(args)+len(deletes) == 0 {
			return exitcode.Usagef("name files with policies, or policies to --delete")
		}
		if req.Documents, err = readDocuments(args, cmd.InOrStdin()); err != nil {
			return err
		}
		for _, text := range deletes {
			name, err := parsePolicyName(text)
			if err != nil {
				return err
			}
			req.Delete = append(req.Delete, name)
		}
		var res *policypb.PreviewResponse
		err = q.ask(a, func(c policypb.PolicyClient) (err error) {
			res, err = readAnswer(c.Preview(cmd.Context(), req))
			return err
		})
		if err != nil {
			return err
		}
		if q.output == "json" {
			err = writeAnswer(cmd.OutOrStdout(), res)
		} else {
			err = writePreview(a, cmd.OutOrStdout(), res)
		}
		if err != nil {
			return err
		}
		return outcome(res)
	}
	return c
}

// outcome chooses the exit code of an answer. The nodes that are missing may have seen what would
// be refused. Lost events are no reason: busy nodes always lose some, and what was lost is as
// unrecorded as what is older than the oldest flow.
func outcome(res *policypb.PreviewResponse) error {
	if res.GetSummary().GetRefused() > 0 {
		return command.Silent(exitcode.Refused)
	}
	if n := len(res.GetProblems()); n > 0 {
		return exitcode.With(exitcode.Incomplete, fmt.Errorf("the answer is incomplete: what %s recorded is missing (%d in all); see `hawser observe nodes`, and try again",
			output.Printable(res.GetProblems()[0].GetNodeName()), n))
	}
	return nil
}

// readDocuments reads files, directories and the standard input.
func readDocuments(args []string, stdin io.Reader) (out []*policypb.Document, err error) {
	left := int64(maxPreviewFiles)
	add := func(name string, r io.Reader) error {
		data, err := io.ReadAll(io.LimitReader(r, left+1))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if left -= int64(len(data)); left < 0 {
			return exitcode.Usagef("%s: with it there are more than %d bytes of policies", name, maxPreviewFiles)
		}
		out = append(out, &policypb.Document{Name: name, Content: data})
		return nil
	}
	file := func(path string) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return add(path, f)
	}
	for _, arg := range args {
		if arg == "-" {
			if err := add("standard input", stdin); err != nil {
				return nil, err
			}
			continue
		}
		st, err := os.Stat(arg)
		if err != nil {
			return nil, err
		}
		files := []string{arg}
		if st.IsDir() {
			files = nil
			entries, err := os.ReadDir(arg)
			if err != nil {
				return nil, err
			}
			for _, e := range entries {
				if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) && !e.IsDir() {
					files = append(files, filepath.Join(arg, e.Name()))
				}
			}
		}
		for _, path := range files {
			if err := file(path); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// parsePolicyName reads [kind/][namespace/]name. Kinds begin with a capital letter, namespaces
// never do.
func parsePolicyName(text string) (*policypb.PolicyName, error) {
	parts := strings.Split(text, "/")
	n := &policypb.PolicyName{}
	if len(parts) > 1 && parts[0] != "" && parts[0][0] >= 'A' && parts[0][0] <= 'Z' {
		n.Kind, parts = parts[0], parts[1:]
	}
	n.Name = parts[len(parts)-1]
	if len(parts) == 2 {
		n.Namespace = parts[0]
	}
	if len(parts) > 2 || slices.Contains(parts, "") {
		return nil, exitcode.Usagef("--delete: %q is not [kind/]namespace/name, nor [kind/]name", text)
	}
	return n, nil
}

func writePreview(a *command.App, w io.Writer, res *policypb.PreviewResponse) error {
	sum := res.GetSummary()
	var b strings.Builder
	for _, ch := range res.GetChanges() {
		where := ""
		if ch.GetDocument() != "" {
			where = fmt.Sprintf(" (%s, line %d)", output.Printable(ch.GetDocument()), ch.GetLine())
		}
		fmt.Fprintf(&b, "%s %s %s%s\n", strings.ToLower(ch.GetAction().String()), ch.GetPolicy().GetKind(), output.Printable(ch.GetPolicy().Text()), where)
	}
	for _, text := range res.GetWarnings() {
		fmt.Fprintln(&b, a.Paint(output.Warn, "warning: "+output.Printable(text)))
	}
	for _, p := range res.GetProblems() {
		fmt.Fprintln(&b, a.Paint(output.Warn, output.Printable("nothing of "+p.GetNodeName()+": "+p.GetProblem())))
	}
	missing := sum.GetEventsLost() > 0 || len(res.GetProblems()) > 0
	atMost := sum.GetChangedAtMost()
	fmt.Fprintf(&b, "\n%d flows evaluated", sum.GetFlows())
	if sum.GetOldest() != nil {
		fmt.Fprintf(&b, ", since %s", sum.GetOldest().AsTime().Local().Format("Jan _2 15:04:05"))
	}
	if n := sum.GetFlowsNotEvaluated(); n > 0 {
		fmt.Fprintf(&b, "; %d cannot be", n)
	}
	if n := sum.GetEventsLost(); n > 0 {
		fmt.Fprintf(&b, "; %d events are lost, so that what was seen is more than what is counted", n)
	}
	b.WriteString("\n")
	for _, part := range []struct {
		after policypb.Verdict
		title string
		n     uint64
		look  output.Style
	}{{policypb.Verdict_DENIED, "Seen, and would be refused", sum.GetRefused(), output.Bad}, {policypb.Verdict_ALLOWED, "Seen, and would be allowed", sum.GetAllowed(), output.Good}} {
		fmt.Fprintf(&b, "\n%s: %s\n", part.title, a.Paint(part.look, observe.Bounds(missing, atMost && part.n > 0)+fmt.Sprint(part.n)))
		t := a.Table("SOURCE", "DESTINATION", "PORT", "SEEN", "LAST", "DECIDED BY")
		for _, c := range res.GetConnections() {
			if c.GetAfter() != part.after {
				continue
			}
			t.Row(output.Printable(c.GetSource().Text()), output.Printable(c.GetDestination().Text()), listText(policypb.PortsText([]*policypb.PortRange{{Protocol: c.GetProtocol(), First: c.GetPort(), Last: c.GetPort()}}, portOf)),
				c.GetCount(), c.GetLastSeen().AsTime().Local().Format("Jan _2 15:04:05"), output.Printable(c.GetDecision().Text()))
		}
		if t.Len() > 0 {
			if err := t.Write(&b); err != nil {
				return err
			}
		}
	}
	if n := sum.GetConnectionsLeftOut(); n > 0 {
		fmt.Fprintf(&b, "%s%d more are not shown\n", observe.Bounds(missing, atMost), n)
	}
	for _, part := range []struct {
		title string
		n     uint64
		has   func(*policypb.PairChange) []*policypb.PortRange
		ports func(*policypb.PairChange, func(protocol, ports string) string) []string
	}{
		{"Pairs that open", sum.GetPairsOpened(), (*policypb.PairChange).GetOpened, (*policypb.PairChange).OpenedText},
		{"Pairs that close", sum.GetPairsClosed(), (*policypb.PairChange).GetClosed, (*policypb.PairChange).ClosedText},
	} {
		fmt.Fprintf(&b, "\n%s: %s%d\n", part.title, observe.Bounds(sum.GetPartiesLeftOut() > 0, false), part.n)
		t := a.Table("SOURCE", "DESTINATION", "PORTS", "POLICIES")
		for _, p := range res.GetPairs() {
			if len(part.has(p)) > 0 {
				t.Row(partyAt(res.GetParties(), p.GetSource()), partyAt(res.GetParties(), p.GetDestination()), listText(part.ports(p, portOf)), accessPolicies(p.GetAfter()))
			}
		}
		if t.Len() > 0 {
			if err := t.Write(&b); err != nil {
				return err
			}
		}
	}
	if n := sum.GetPairsLeftOut(); n > 0 {
		fmt.Fprintf(&b, "%d more pairs are not shown\n", n)
	}
	if n := sum.GetPartiesLeftOut(); n > 0 {
		fmt.Fprintf(&b, "%d identities are too many, and were not compared\n", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	policypb "github.com/hawser-net/hawser/api/policy"
)

// ExitRefused is the exit code of a preview by which something that was seen would be refused.
const ExitRefused = 5

// maxPreviewFiles bounds what is read before a server has a say about it, in bytes.
const maxPreviewFiles = 1 << 20

// policyQuestion is what commands that ask the service of policies have in common.
type policyQuestion struct {
	server flowServer
	output string
}

func (q *policyQuestion) flags(c *cobra.Command) {
	q.server.flags(c)
	c.Flags().StringVarP(&q.output, "output", "o", "table", "`format`: table or json")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]cobra.Completion{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// ask dials the server and has f ask it.
func (q *policyQuestion) ask(a *app, f func(policypb.PolicyClient) error) error {
	if q.output != "table" && q.output != "json" {
		return usagef("--output: %q is neither table nor json", q.output)
	}
	conn, err := q.server.dial(a.cfg.Getenv)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = f(policypb.NewPolicyClient(conn))
	if status.Code(err) == codes.Unimplemented {
		return errors.New("the server does not know what policies mean; ask an agent or a relay of Hawser")
	}
	return flowError(err, cmp.Or(q.server.address, a.cfg.Getenv(envFlowServer), defaultFlowServer))
}

// readAnswer reads an answer that comes in pieces.
func readAnswer[T any, M interface {
	*T
	proto.Message
}](stream grpc.ServerStreamingClient[T], err error) (M, error) {
	if err != nil {
		return nil, err
	}
	return policypb.Read[T, M](stream, policypb.MaxAnswer)
}

// writeAnswer writes an answer as JSON, with the names of the protobuf definitions.
func writeAnswer(w io.Writer, m proto.Message) error {
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return err
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, text, "", "  "); err != nil { // its blanks differ from one program to another
		return err
	}
	pretty.WriteByte('\n')
	_, err = pretty.WriteTo(w)
	return err
}

func (a *app) policyPreviewCommand() *cobra.Command {
	q := &policyQuestion{}
	var deletes []string
	var since string
	var connections, pairs uint32
	c := &cobra.Command{
		Use:   "preview [FILE...]",
		Short: "Show what other policies would change",
		Long: `Show what would be refused and allowed if policies were otherwise: of the connections
that were seen lately, and between all pods of the cluster. Nothing is changed.

FILE holds policies, YAML or JSON: NetworkPolicy, CiliumNetworkPolicy, their clusterwide
kind and ClusterNetworkPolicy. "-" is the standard input, and a directory all its files.
A policy replaces the one of the same kind, namespace and name that is in force.

An agent knows the connections of its own node, a relay (--server) those of all nodes.
What nobody did lately is not seen: the pairs below tell of that.

The exit code is 0 if nothing that was seen would be refused, and 5 if something would.`,
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
		if req.Since, err = parseWhen("since", since, time.Now()); err != nil {
			return err
		}
		if len(args)+len(deletes) == 0 {
			return usagef("name files with policies, or policies to --delete")
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
			err = a.writePreview(cmd.OutOrStdout(), res)
		}
		if err == nil && res.GetSummary().GetRefused() > 0 {
			return &silentError{ExitRefused}
		}
		return err
	}
	return c
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
			return usagef("%s: with it there are more than %d bytes of policies", name, maxPreviewFiles)
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
		return nil, usagef("--delete: %q is not [kind/]namespace/name, nor [kind/]name", text)
	}
	return n, nil
}

// partyAt names the party at a place for people.
func partyAt(list []*policypb.Party, place uint32) string { return printable(list[place].Text()) }

// portOf writes ports for people, as policies have them.
func portOf(protocol, ports string) string { return ports + "/" + protocol }

func listText(list []string) string { return printable(strings.Join(list, ", ")) }

// bounds are the words for what a count may be otherwise: more, for what is missing, or less, for
// what may have been counted twice; none for one that is exact.
func bounds(more, less bool) string {
	switch {
	case more && less:
		return "about "
	case more:
		return "at least "
	case less:
		return "at most "
	}
	return ""
}

func (a *app) writePreview(w io.Writer, res *policypb.PreviewResponse) error {
	sum := res.GetSummary()
	var b strings.Builder
	for _, ch := range res.GetChanges() {
		where := ""
		if ch.GetDocument() != "" {
			where = fmt.Sprintf(" (%s, line %d)", printable(ch.GetDocument()), ch.GetLine())
		}
		fmt.Fprintf(&b, "%s %s %s%s\n", strings.ToLower(ch.GetAction().String()), ch.GetPolicy().GetKind(), printable(ch.GetPolicy().Text()), where)
	}
	for _, text := range res.GetWarnings() {
		fmt.Fprintln(&b, a.paint(warn, "warning: "+printable(text)))
	}
	for _, p := range res.GetProblems() {
		fmt.Fprintln(&b, a.paint(warn, printable("nothing of "+p.GetNodeName()+": "+p.GetProblem())))
	}
	missing := sum.GetEventsLost() > 0 || len(res.GetProblems()) > 0
	atMost := sum.GetChangedAtMost()
	fmt.Fprintf(&b, "\n%d flows judged", sum.GetFlows())
	if sum.GetOldest() != nil {
		fmt.Fprintf(&b, ", since %s", sum.GetOldest().AsTime().Local().Format("Jan _2 15:04:05"))
	}
	if n := sum.GetFlowsNotJudged(); n > 0 {
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
		look  style
	}{{policypb.Verdict_DENIED, "Seen, and would be refused", sum.GetRefused(), bad}, {policypb.Verdict_ALLOWED, "Seen, and would be allowed", sum.GetAllowed(), good}} {
		fmt.Fprintf(&b, "\n%s: %s\n", part.title, a.paint(part.look, bounds(missing, atMost && part.n > 0)+fmt.Sprint(part.n)))
		t := a.table("SOURCE", "DESTINATION", "PORT", "SEEN", "LAST", "DECIDED BY")
		for _, c := range res.GetConnections() {
			if c.GetAfter() != part.after {
				continue
			}
			t.row(printable(c.GetSource().Text()), printable(c.GetDestination().Text()), listText(policypb.PortsText([]*policypb.PortRange{{Protocol: c.GetProtocol(), First: c.GetPort(), Last: c.GetPort()}}, portOf)),
				c.GetCount(), c.GetLastSeen().AsTime().Local().Format("Jan _2 15:04:05"), printable(c.GetDecision().Text()))
		}
		if len(t.rows) > 0 {
			if err := t.write(&b); err != nil {
				return err
			}
		}
	}
	if n := sum.GetConnectionsLeftOut(); n > 0 {
		fmt.Fprintf(&b, "%s%d more are not shown\n", bounds(missing, atMost), n)
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
		fmt.Fprintf(&b, "\n%s: %s%d\n", part.title, bounds(sum.GetPartiesLeftOut() > 0, false), part.n)
		t := a.table("SOURCE", "DESTINATION", "PORTS", "POLICIES")
		for _, p := range res.GetPairs() {
			if len(part.has(p)) > 0 {
				t.row(partyAt(res.GetParties(), p.GetSource()), partyAt(res.GetParties(), p.GetDestination()), listText(part.ports(p, portOf)), accessPolicies(p.GetAfter()))
			}
		}
		if len(t.rows) > 0 {
			if err := t.write(&b); err != nil {
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

// accessPolicies names the policies that have a say.
func accessPolicies(x *policypb.Access) string {
	var out []string
	for _, side := range []*policypb.AccessSide{x.GetEgress(), x.GetIngress()} {
		for _, p := range side.GetPolicies() {
			out = append(out, printable(p.Text()))
		}
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), ", ")
}

func (a *app) policyMatrixCommand() *cobra.Command {
	q := &policyQuestion{}
	req := &policypb.MatrixRequest{}
	c := &cobra.Command{
		Use:   "matrix",
		Short: "Show who may reach whom",
		Long: `Show who may reach whom by the policies in force, computed: pods with the same labels, the
world, nodes, and prefixes that policies name. Pairs that no policy is about are counted
only; -o json has them all.`,
		Example: `  hawser policy matrix -n shop
  hawser policy matrix --server 192.0.2.7:4245 -o json`,
		Args: cobra.NoArgs,
	}
	q.flags(c)
	c.Flags().StringSliceVarP(&req.Namespaces, "namespace", "n", nil, "only pairs of which one side is in these `namespaces`")
	c.Flags().Uint32Var(&req.Parties, "parties", 0, "at most `n` sorts of pods and the like (default and most: 2000)")
	_ = c.RegisterFlagCompletionFunc("namespace", a.completeNamespaces(&q.server))
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		var res *policypb.MatrixResponse
		err := q.ask(a, func(c policypb.PolicyClient) (err error) {
			res, err = readAnswer(c.Matrix(cmd.Context(), req))
			return err
		})
		if err != nil {
			return err
		}
		if q.output == "json" {
			return writeAnswer(cmd.OutOrStdout(), res)
		}
		return a.writeMatrix(cmd.OutOrStdout(), res)
	}
	return c
}

func (a *app) writeMatrix(w io.Writer, res *policypb.MatrixResponse) error {
	t := a.table("SOURCE", "DESTINATION", "PASSES", "POLICIES")
	free := 0
	for _, row := range res.GetRows() {
		for i, n := range row.GetAccesses() {
			x := res.GetAccesses()[n]
			by := accessPolicies(x)
			passes := cell{strings.ToLower(x.GetVerdict().String()), good}
			switch {
			case x.GetVerdict() == policypb.Verdict_UNKNOWN:
				continue
			case x.GetVerdict() == policypb.Verdict_ALLOWED && by == "":
				free++
				continue
			case x.GetVerdict() == policypb.Verdict_DENIED:
				passes = cell{"nothing", bad}
			case x.GetVerdict() == policypb.Verdict_PARTIAL:
				passes = cell{listText(policypb.PortsText(x.GetPorts(), portOf)), warn}
			default:
				passes = cell{"everything", good}
			}
			if x.GetByAddress() {
				passes.text += " (by address)"
			}
			t.row(partyAt(res.GetParties(), row.GetSource()), partyAt(res.GetParties(), uint32(i)), passes, by)
		}
	}
	if err := t.write(w); err != nil {
		return err
	}
	text := fmt.Sprintf("\n%d more pairs pass without any policy about them\n", free)
	if n := res.GetPartiesLeftOut(); n > 0 {
		text += fmt.Sprintf("%d identities are too many, and are not shown\n", n)
	}
	_, err := io.WriteString(w, text)
	return err
}

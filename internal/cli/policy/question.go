package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/observe"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
)

// question is what commands that ask the service of policies have in common.
type question struct {
	server observe.Server
	output string
}

func (q *question) flags(c *cobra.Command) {
	q.server.AddFlags(c)
	c.Flags().StringVarP(&q.output, "output", "o", "table", "`format`: table or json")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]cobra.Completion{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// ask dials the server and has f ask it.
func (q *question) ask(a *command.App, f func(policypb.PolicyClient) error) error {
	if q.output != "table" && q.output != "json" {
		return exitcode.Usagef("--output: %q is neither table nor json", q.output)
	}
	conn, err := q.server.Dial(a)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = f(policypb.NewPolicyClient(conn))
	if status.Code(err) == codes.Unimplemented {
		return errors.New("the server does not know what policies mean; ask an agent or a relay of Hawser")
	}
	return q.server.AnswerError(a, err)
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

// partyAt names the party at a place for people.
func partyAt(list []*policypb.Party, place uint32) string {
	return output.Printable(list[place].Text())
}

// portOf writes ports for people, as policies have them.
func portOf(protocol, ports string) string { return ports + "/" + protocol }

func listText(list []string) string { return output.Printable(strings.Join(list, ", ")) }

// accessPolicies names the policies that take part.
func accessPolicies(x *policypb.Access) string {
	var out []string
	for _, side := range []*policypb.AccessSide{x.GetEgress(), x.GetIngress()} {
		for _, p := range side.GetPolicies() {
			out = append(out, output.Printable(p.Text()))
		}
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), ", ")
}

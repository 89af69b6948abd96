package observe

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/exitcode"
)

// question makes a command of hawser observe that asks a server of flows one question. show
// is nil where only JSON is of use.
func question[T proto.Message](a *command.App, use, short, long string, ask func(context.Context, grpc.ClientConnInterface) (T, error), show func(*cobra.Command, T) error) *cobra.Command {
	var server Server
	var format string
	example := "  hawser observe " + use + "\n  hawser observe " + use + " --server 192.0.2.7:4245 -o json"
	c := &cobra.Command{Use: use, Short: short, Long: long, Example: example, Args: cobra.NoArgs}
	server.AddFlags(c)
	c.Flags().StringVarP(&format, "output", "o", "table", "`format`: table or json")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]cobra.Completion{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if format != "table" && format != "json" {
			return exitcode.Usagef("--output: %q is neither table nor json", format)
		}
		conn, err := server.Dial(a)
		if err != nil {
			return err
		}
		defer conn.Close()
		res, err := ask(cmd.Context(), conn)
		if err != nil {
			return server.AnswerError(a, err)
		}
		if format == "table" {
			return show(cmd, res)
		}
		text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true, Indent: "  "}.Marshal(res)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), string(text))
		return err
	}
	return c
}

// Bounds are the words for what a count may be otherwise: more, for what is missing, or less, for
// what may have been counted twice; none for one that is exact.
func Bounds(more, less bool) string {
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

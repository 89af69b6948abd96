package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/operator"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
)

// operatorTimeout bounds one request, and maxOperatorAnswer what is read of its answer.
const (
	operatorTimeout   = 10 * time.Second
	maxOperatorAnswer = 16 << 20
)

// OperatorCommand asks an operator.
func OperatorCommand(a *command.App) *cobra.Command {
	var addr string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the leader, pending work, failures and the number of identities",
		Long: `Show the leader, pending work, failures and the number of identities.

It asks one operator, at its --operator-api-serve-addr. Every operator answers;
the counts of the cluster's objects are known to the leader. In Kubernetes run it
where an operator runs: its pods use the network of their node.

The exit code is 0 while the operator can do its duties, 1 if it cannot, and 3 if
it does not answer.`,
		Example: `  hawser operator status
  kubectl -n kube-system exec deploy/hawser-operator -- hawser operator status
  hawser operator status -o jsonpath='{.leader.holder}'`,
		Args: cobra.NoArgs,
	}
	c.Flags().StringVar(&addr, "address", "localhost:9234", "where the operator answers")
	out := output.AddFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		st, err := askOperator(cmd.Context(), addr)
		if err != nil {
			return err
		}
		err = out.Print(cmd.OutOrStdout(), st, func(w io.Writer) error { return writeOperator(a, w, st) })
		if err == nil && len(st.Faults) > 0 {
			err = command.Silent(exitcode.Failure)
		}
		return err
	}
	return command.Group("operator", "Ask the operator of the cluster", "", c)
}

// askOperator reads the status of the operator at addr.
func askOperator(ctx context.Context, addr string) (*operator.Status, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, exitcode.Usagef("--address: %w; write host:port", err)
	}
	ctx, cancel := context.WithTimeout(ctx, operatorTimeout)
	defer cancel()
	u := url.URL{Scheme: "http", Host: addr, Path: "/v1/status"}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, exitcode.Usagef("--address: %w", err)
	}
	// An operator is near: no proxy stands between.
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		var cause *url.Error
		if errors.As(err, &cause) {
			err = cause.Err
		}
		return nil, exitcode.With(exitcode.Unreachable, fmt.Errorf("no operator answers at %s: %w; --address says where one does", addr, err))
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxOperatorAnswer))
	if err != nil {
		return nil, fmt.Errorf("reading the answer of %s: %w", addr, err)
	}
	st := &operator.Status{}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s: %s", addr, resp.Status, output.Printable(strings.TrimSpace(string(body[:min(len(body), 500)]))))
	}
	if err := json.Unmarshal(body, st); err != nil || st.Version == "" {
		return nil, fmt.Errorf("%s does not answer as an operator of Hawser does", addr)
	}
	return st, nil
}

func writeOperator(a *command.App, w io.Writer, st *operator.Status) error {
	f := a.Facts()
	state := output.Good.Cell("Ok")
	if len(st.Faults) > 0 {
		state = output.Bad.Cell("Failure: " + strings.Join(st.Faults, "; "))
	}
	f.Add("Operator", state)
	f.Add("Version", st.Version)
	f.Add("Cluster", st.Cluster)
	f.Add("Since", st.Started.Format(output.TimeFormat))
	if l := st.Leader; l != nil {
		leader := output.Warn.Cell("none")
		switch {
		case l.Self:
			leader = output.Plain.Cell(st.Name + ", this one")
		case l.Holder != "":
			leader = output.Plain.Cell(l.Holder + "; it knows what is counted")
		}
		f.Add("Leader", leader)
	}
	if i := st.Identities; i != nil {
		f.Add("Identities", fmt.Sprintf("%d of %d: %d in use, %d about to be collected", i.Total, i.Capacity, i.InUse, i.Marked))
		if i.Duplicates > 0 {
			who := "1 identity has"
			if i.Duplicates > 1 {
				who = fmt.Sprintf("%d identities have", i.Duplicates)
			}
			f.Add("Duplicates", output.Warn.Cell(who+" the labels of another one"))
		}
	}
	if l := st.IdentityLabels; l != nil {
		keys, style := "all", output.Plain
		if !l.All {
			keys = cmp.Or(strings.Join(l.Keys, ", "), "none") + fmt.Sprintf("; %d identities instead of %d", l.Identities, l.WithAllLabels)
		}
		if len(l.WaitingFor) > 0 {
			keys, style = keys+"; a change waits for "+strings.Join(l.WaitingFor, ", "), output.Warn
		}
		f.Add("Labels", style.Cell(keys))
	}
	if e := st.Endpoints; e != nil {
		f.Add("Endpoints", fmt.Sprintf("%d, %d of them without an identity", e.Total, e.WithoutIdentity))
	}
	if s := st.Slices; s != nil && s.Total > 0 {
		f.Add("Slices", fmt.Sprintf("%d with %d endpoints", s.Total, s.Endpoints))
	}
	if err := f.Write(w); err != nil {
		return err
	}
	if len(st.Queues) > 0 {
		t := a.Table("QUEUE", "WAITING", "RETRIES")
		for _, q := range st.Queues {
			t.Row(q.Name, q.Waiting, q.Retries)
		}
		if err := t.WriteAfterBlank(w); err != nil {
			return err
		}
	}
	if len(st.Problems) > 0 {
		t := a.Table("LAST", "TIMES", "PART", "PROBLEM")
		for _, p := range st.Problems {
			text := p.Message
			if p.Error != "" {
				text += ": " + p.Error
			}
			t.Row(p.Last.Format(output.TimeFormat), p.Count, p.Part, text)
		}
		return t.WriteAfterBlank(w)
	}
	return nil
}

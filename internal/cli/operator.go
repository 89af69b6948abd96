package cli

import (
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
)

// operatorTimeout bounds one request, and maxOperatorAnswer what is read of its answer.
const (
	operatorTimeout   = 10 * time.Second
	maxOperatorAnswer = 16 << 20
)

func (a *app) operatorCommand() *cobra.Command {
	var addr string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show who leads, what waits, what failed, and how many identities there are",
		Long: `Show who leads, what waits, what failed, and how many identities there are.

It asks one operator, at its --operator-api-serve-addr. Every operator answers;
the counts of the cluster's objects are known to the leader. In Kubernetes run it
where an operator runs: its pods use the network of their node.

The exit code is 0 while the operator can do its duties, 1 if it cannot, and 3 if
it does not answer.`,
		Example: `  hawser operator status
  kubectl -n kube-system exec deploy/cilium-operator -- hawser operator status
  hawser operator status -o jsonpath='{.leader.holder}'`,
		Args: cobra.NoArgs,
	}
	c.Flags().StringVar(&addr, "address", "localhost:9234", "where the operator answers")
	out := addOutput(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		st, err := askOperator(cmd.Context(), addr)
		if err != nil {
			return err
		}
		err = out.print(cmd.OutOrStdout(), st, func(w io.Writer) error { return a.writeOperator(w, st) })
		if err == nil && len(st.Faults) > 0 {
			err = &silentError{ExitError}
		}
		return err
	}
	return a.group("operator", "Ask the operator of the cluster", "", c)
}

// askOperator reads the status of the operator at addr.
func askOperator(ctx context.Context, addr string) (*operator.Status, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, usagef("--address: %w; write host:port", err)
	}
	ctx, cancel := context.WithTimeout(ctx, operatorTimeout)
	defer cancel()
	u := url.URL{Scheme: "http", Host: addr, Path: "/v1/status"}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, usagef("--address: %w", err)
	}
	// An operator is near: no proxy stands between.
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		var cause *url.Error
		if errors.As(err, &cause) {
			err = cause.Err
		}
		return nil, &codedError{ExitUnreachable, fmt.Errorf("no operator answers at %s: %w; --address says where one does", addr, err)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxOperatorAnswer))
	if err != nil {
		return nil, fmt.Errorf("reading the answer of %s: %w", addr, err)
	}
	st := &operator.Status{}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s: %s", addr, resp.Status, printable(strings.TrimSpace(string(body[:min(len(body), 500)]))))
	}
	if err := json.Unmarshal(body, st); err != nil || st.Version == "" {
		return nil, fmt.Errorf("%s does not answer as an operator of Hawser does", addr)
	}
	return st, nil
}

func (a *app) writeOperator(w io.Writer, st *operator.Status) error {
	f := a.facts()
	state := cell{"Ok", good}
	if len(st.Faults) > 0 {
		state = cell{"Failure: " + strings.Join(st.Faults, "; "), bad}
	}
	f.add("Operator", state)
	f.add("Version", st.Version)
	f.add("Cluster", st.Cluster)
	f.add("Since", st.Started.Format(timeFormat))
	if l := st.Leader; l != nil {
		leader := cell{"nobody", warn}
		switch {
		case l.Self:
			leader = cell{st.Name + ", this one", plain}
		case l.Holder != "":
			leader = cell{l.Holder + "; it knows what is counted", plain}
		}
		f.add("Leader", leader)
	}
	if i := st.Identities; i != nil {
		f.add("Identities", fmt.Sprintf("%d of %d: %d in use, %d about to be collected", i.Total, i.Capacity, i.InUse, i.Marked))
		if i.Duplicates > 0 {
			f.add("Duplicates", cell{fmt.Sprintf("%d identities have the labels of another one", i.Duplicates), warn})
		}
	}
	if l := st.IdentityLabels; l != nil {
		keys, style := "all", plain
		if !l.All {
			keys = strings.Join(l.Keys, ", ")
			if keys == "" {
				keys = "none"
			}
			keys += fmt.Sprintf("; %d identities instead of %d", l.Identities, l.WithAllLabels)
		}
		if len(l.WaitingFor) > 0 {
			keys, style = keys+"; a change waits for "+strings.Join(l.WaitingFor, ", "), warn
		}
		f.add("Labels", cell{keys, style})
	}
	if e := st.Endpoints; e != nil {
		f.add("Endpoints", fmt.Sprintf("%d, %d of them without an identity", e.Total, e.WithoutIdentity))
	}
	if s := st.Slices; s != nil && s.Total > 0 {
		f.add("Slices", fmt.Sprintf("%d with %d endpoints", s.Total, s.Endpoints))
	}
	if err := f.write(w); err != nil {
		return err
	}
	if len(st.Queues) > 0 {
		t := a.table("QUEUE", "WAITING", "RETRIES")
		for _, q := range st.Queues {
			t.row(q.Name, q.Waiting, q.Retries)
		}
		if err := writeAfterBlank(w, t); err != nil {
			return err
		}
	}
	if len(st.Problems) > 0 {
		t := a.table("LAST", "TIMES", "PART", "PROBLEM")
		for _, p := range st.Problems {
			text := p.Message
			if p.Error != "" {
				text += ": " + p.Error
			}
			t.row(p.Last.Format(timeFormat), p.Count, p.Part, text)
		}
		return writeAfterBlank(w, t)
	}
	return nil
}

package store

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// storedIdentity is an identity as the key-value store has it, whatever this node knows.
type storedIdentity struct {
	ID     uint64   `json:"id"`
	Labels []string `json:"labels"`
	// Nodes are the addresses of the nodes that use it. An unused identity is collected some time
	// later.
	Nodes []string `json:"nodes"`
	// Stray are uses of these labels under another ID, "address=ID", which should not be.
	Stray []string `json:"stray,omitempty"`
}

// readStoredIdentities reads what stands under the allocator's keys. A key that is invalid is
// left out: the store may hold what others wrote.
func readStoredIdentities(ctx context.Context, store kvstore.Backend) ([]storedIdentity, error) {
	ids, err := store.List(ctx, storekeys.IdentitiesPrefix+"/id/")
	if err != nil {
		return nil, err
	}
	uses, err := store.List(ctx, storekeys.IdentitiesPrefix+"/value/")
	if err != nil {
		return nil, err
	}
	type use struct{ node, id string }
	byLabels := map[string][]use{}
	for _, kv := range uses.Pairs {
		path := strings.TrimPrefix(kv.Key, storekeys.IdentitiesPrefix+"/value/")
		if i := strings.LastIndexByte(path, '/'); i > 0 {
			text := store.Layout().Decode(path[:i])
			byLabels[text] = append(byLabels[text], use{path[i+1:], string(kv.Value)})
		}
	}
	out := []storedIdentity{}
	for _, kv := range ids.Pairs {
		key := strings.TrimPrefix(kv.Key, storekeys.IdentitiesPrefix+"/id/")
		id, err := strconv.ParseUint(key, 10, 64)
		if err != nil {
			continue
		}
		text := store.Layout().Decode(string(kv.Value))
		s := storedIdentity{ID: id, Labels: storedLabels(text), Nodes: []string{}}
		for _, u := range byLabels[text] {
			if u.id == key {
				s.Nodes = append(s.Nodes, u.node)
			} else {
				s.Stray = append(s.Stray, u.node+"="+u.id)
			}
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(x, y storedIdentity) int { return cmp.Compare(x.ID, y.ID) })
	return out, nil
}

// storedLabels reads labels in the form of the store. What cannot be read is shown as it stands.
func storedLabels(text string) []string {
	set, err := labels.ParseKV(text)
	if err != nil {
		return []string{text}
	}
	out := make([]string, len(set))
	for i, l := range set {
		out[i] = l.String()
	}
	slices.Sort(out)
	return out
}

// ListIdentities is the command identity list with --kvstore.
func ListIdentities(a *command.App, open Opener, f *Flags, out *output.Format) func(*cobra.Command, []string) error {
	return withStore(open, f, func(ctx context.Context, cmd *cobra.Command, store kvstore.Backend, args []string) error {
		ids, err := readStoredIdentities(ctx, store)
		if err != nil {
			return err
		}
		if len(args) > 0 {
			want, err := labels.ParseSet(args)
			if err != nil {
				return exitcode.With(exitcode.Usage, err)
			}
			wanted := storedLabels(want.KVString())
			ids = slices.DeleteFunc(ids, func(s storedIdentity) bool { return !slices.Equal(s.Labels, wanted) })
		}
		return out.Print(cmd.OutOrStdout(), ids, func(w io.Writer) error {
			t := a.Table("ID", "LABELS", "NODES")
			for _, s := range ids {
				nodes := strconv.Itoa(len(s.Nodes))
				if len(s.Stray) > 0 {
					nodes += ", and " + strings.Join(s.Stray, " ")
				}
				t.Row(s.ID, s.Labels, nodes)
			}
			return t.Write(w)
		})
	})
}

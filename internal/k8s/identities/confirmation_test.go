package identities_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// TestSumUp: of what a node said the highest counts, but nothing that it took back since; and what
// takes something back stays as long as that is there.
func TestSumUp(t *testing.T) {
	t.Parallel()
	lease := func(node string, confirmed, made uint64) *coordinationv1.Lease {
		o := identities.Confirmation{Node: node, Version: confirmed}.Lease("default")
		o.Name = fmt.Sprintf("%s said %d at %d", node, confirmed, made)
		o.ResourceVersion = fmt.Sprint(made)
		return o
	}
	unheld := lease("a", 1, 2)
	unheld.Name, unheld.Spec.HolderIdentity = "unheld", nil
	for _, tt := range []struct {
		name   string
		leases []*coordinationv1.Lease
		said   map[string]uint64
		left   []string
	}{
		{"none", nil, map[string]uint64{}, nil},
		{"one", []*coordinationv1.Lease{lease("a", 5, 10)}, map[string]uint64{"a": 5}, []string{"a said 5 at 10"}},
		{"the highest", []*coordinationv1.Lease{lease("a", 5, 10), lease("a", 7, 11), lease("a", 6, 12), lease("b", 1, 13)},
			map[string]uint64{"a": 7, "b": 1}, []string{"a said 7 at 11", "b said 1 at 13"}},
		{"taken back", []*coordinationv1.Lease{lease("a", 5, 10), lease("a", 0, 11)}, map[string]uint64{"a": 0}, []string{"a said 0 at 11"}},
		{"a late one", []*coordinationv1.Lease{lease("a", 5, 12), lease("a", 0, 11), lease("a", 9, 10)},
			map[string]uint64{"a": 5}, []string{"a said 0 at 11", "a said 5 at 12"}},
		{"what was taken back is gone", []*coordinationv1.Lease{lease("a", 5, 12), lease("a", 0, 11)}, map[string]uint64{"a": 5}, []string{"a said 5 at 12"}},
		{"taken back twice", []*coordinationv1.Lease{lease("a", 5, 10), lease("a", 0, 11), lease("a", 8, 12), lease("a", 0, 13), lease("a", 6, 14)},
			map[string]uint64{"a": 6}, []string{"a said 0 at 13", "a said 6 at 14"}},
		{"of what was never reached", []*coordinationv1.Lease{lease("a", 5, 10), lease("a", 100, 11)}, map[string]uint64{"a": 0}, []string{"a said 100 at 11"}},
		{"without a holder", []*coordinationv1.Lease{unheld}, map[string]uint64{}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for range 20 { // whatever the order
				all := slices.Clone(tt.leases)
				rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				said, needless := identities.SumUp(all)
				if diff := cmp.Diff(tt.said, said); diff != "" {
					t.Fatalf("who said what (-want +got):\n%s", diff)
				}
				var left []string
				for _, o := range tt.leases {
					if !slices.Contains(needless, o) {
						left = append(left, o.Name)
					}
				}
				slices.Sort(left)
				if diff := cmp.Diff(tt.left, left); diff != "" {
					t.Fatalf("what is needed (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// TestConfirmations: what an agent said is taken back by a Lease of its own, whatever it said
// before and in whichever order, on a real server.
func TestConfirmations(t *testing.T) {
	t.Parallel()
	server := kubeapi.Start(t)
	c, err := k8s.New(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	agent := func() *identities.Backend {
		b, err := identities.New(identities.Config{Client: c, First: 256, Last: 65535, KeyType: key{}, Node: "one", Namespace: "default"})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := agent()
	for i, step := range []struct {
		confirm, want int64
		restart       bool
	}{{confirm: 3, want: 3}, {confirm: 3, want: 3}, {confirm: 0}, {confirm: 3, want: 3}, {confirm: 2, want: 3}, {confirm: 0}, {confirm: 0}, {confirm: 2, want: 2}, {confirm: 3, want: 3},
		{confirm: 3, want: 3, restart: true}, {confirm: 0}} {
		if step.restart {
			b = agent()
		}
		if err := b.Confirm(t.Context(), step.confirm); err != nil {
			t.Fatal(err)
		}
		list, err := c.Kube.CoordinationV1().Leases("default").List(t.Context(), metav1.ListOptions{LabelSelector: identities.ConfirmationLabel + "=" + identities.ConfirmationLabelValue})
		if err != nil {
			t.Fatal(err)
		}
		var all []*coordinationv1.Lease
		var names []string
		for j := range list.Items {
			all, names = append(all, &list.Items[j]), append(names, list.Items[j].Name)
		}
		said, needless := identities.SumUp(all)
		if got, ok := said["one"]; !ok || got != uint64(step.want) {
			t.Fatalf("step %d says %d: it counts as %d, want %d; there are %s", i, step.confirm, got, step.want, strings.Join(names, " "))
		}
		if i%2 == 1 { // the operator deletes what is needless, now and then
			for _, o := range needless {
				if err := c.Kube.CoordinationV1().Leases("default").Delete(t.Context(), o.Name, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

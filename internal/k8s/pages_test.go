package k8s_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// TestEachPageExpired: a list whose moment the server forgets between two pages is read anew, and
// no object is in it twice.
func TestEachPageExpired(t *testing.T) {
	t.Parallel()
	server := kubeapi.Start(t, "--etcd-compaction-interval=1s", "--feature-gates=ListFromCacheSnapshot=false")
	maps := newClient(t, server).Urgent.CoreV1().ConfigMaps("default")
	write := func(name string) {
		t.Helper()
		_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"of": "test"}}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		write(fmt.Sprintf("m-%d", i))
	}
	deadline := time.Now().Add(time.Minute)
	expired, began := 0, 0
	var names []string
	err := k8s.EachPage(t.Context(), func(ctx context.Context, o metav1.ListOptions) (*corev1.ConfigMapList, error) {
		o.LabelSelector, o.Limit = "of=test", min(o.Limit, 2)
		for {
			l, err := maps.List(ctx, o)
			if apierrors.IsResourceExpired(err) {
				expired++
			}
			if err != nil || o.Continue == "" || time.Now().After(deadline) {
				return l, err
			}
			time.Sleep(100 * time.Millisecond) // until the server has compacted
			_, _ = maps.Update(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m-0", Labels: map[string]string{"of": "test"}}, Data: map[string]string{"at": time.Now().String()}}, metav1.UpdateOptions{})
		}
	}, func() {
		began++
		names = nil
	}, func(l *corev1.ConfigMapList) error {
		for i := range l.Items {
			names = append(names, l.Items[i].Name)
		}
		return nil
	})
	want := []string{"m-0", "m-1", "m-2", "m-3", "m-4"}
	if err != nil || expired != 1 || began != 2 || !slices.Equal(names, want) {
		t.Errorf("%v; the list expired %d times and began %d times; got %q, want %q", err, expired, began, names, want)
	}
}

// TestEachPageErrors: what is no expired list is not tried again, and an error of the reader ends
// it.
func TestEachPageErrors(t *testing.T) {
	t.Parallel()
	gone := apierrors.NewResourceExpired("too old")
	for _, tt := range []struct {
		name    string
		answers []error // nil: a page that is not the last
		page    error
		calls   int
		want    error
	}{
		{"at the first page", []error{gone}, nil, 1, gone},
		{"twice", []error{nil, gone, gone}, nil, 3, gone},
		{"another one", []error{nil, context.Canceled}, nil, 2, context.Canceled},
		{"of the reader", []error{nil, nil}, context.Canceled, 1, context.Canceled},
	} {
		calls := 0
		err := k8s.EachPage(t.Context(), func(_ context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
			calls++
			return &corev1.PodList{ListMeta: metav1.ListMeta{Continue: "more"}}, tt.answers[calls-1]
		}, nil, func(*corev1.PodList) error { return tt.page })
		if err != tt.want || calls != tt.calls {
			t.Errorf("%s: %v after %d requests; want %v after %d", tt.name, err, calls, tt.want, tt.calls)
		}
	}
}

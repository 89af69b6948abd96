package kubeapi_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// TestServer has an object survive a restart of the server.
func TestServer(t *testing.T) {
	t.Parallel()
	k := kubeapi.Start(t)
	client, err := kubernetes.NewForConfig(k.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	k.Stop()
	u, err := url.Parse(k.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := net.Listen("tcp", u.Host); err == nil {
		l.Close()
		t.Error("another process can take the port of a stopped server")
	}
	if _, err := net.Dial("tcp", u.Host); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connecting to a stopped server: %v, want a refusal", err)
	}
	if _, err := client.CoreV1().Namespaces().Get(ctx, "kept", metav1.GetOptions{}); err == nil {
		t.Error("a stopped server answers")
	}
	k.Start()
	if _, err := client.CoreV1().Namespaces().Get(ctx, "kept", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

package scale

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/hawser-net/hawser/api/crds"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/bench/child"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/sandbox/kube/parts"
)

// cluster is an API server with an etcd of its own, both processes: an API without nodes,
// controllers and pods that run.
type cluster struct {
	r    *runner
	dir  string
	etcd *child.Process
	api  *child.Process
	// rest reaches the server with all rights and without limits.
	rest *rest.Config
	// client is the harness's own.
	client *k8s.Client
	// kubeconfig is a file for other programs.
	kubeconfig string
	operators  []*child.Process
	started    int // operators, ever
}

// readyTimeout is how long a server may take to start on a busy machine.
const readyTimeout = 2 * time.Minute

// newCluster starts the servers and defines the custom resources.
func (r *runner) newCluster(ctx context.Context) (_ *cluster, err error) {
	dir, err := os.MkdirTemp(r.dir, "cluster-")
	if err != nil {
		return nil, err
	}
	c := &cluster{r: r, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if c.etcd, err = child.Start("etcd", filepath.Join(dir, "etcd.log"), nil, append(append([]string(nil), r.cfg.Self...), dir)...); err != nil {
		return c, err
	}
	if err := c.startAPI(); err != nil {
		return c, err
	}
	if c.client, err = k8s.New(c.rest); err != nil {
		return c, err
	}
	err = child.Poll(ctx, readyTimeout, 50*time.Millisecond, func() error {
		for _, p := range []*child.Process{c.etcd, c.api} {
			if p.Ended() {
				return nil
			}
		}
		return c.client.Urgent.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	for _, p := range []*child.Process{c.etcd, c.api} {
		if p.Ended() {
			return c, fmt.Errorf("%s ended: %w: %s", p.Name, p.Err(), p.Tail())
		}
	}
	if err != nil {
		return c, fmt.Errorf("kube-apiserver is not ready: %w: %s", err, c.api.Tail())
	}
	return c, c.define(ctx)
}

// startAPI starts the API server and sets how to reach it.
func (c *cluster) startAPI() error {
	builder, err := parts.Here(c.r.cfg.Progress, false)
	if err != nil {
		return err
	}
	program, err := builder.Program("kube-apiserver")
	if err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	secret := make([]byte, 16)
	if _, err := rand.Read(secret); err != nil {
		return err
	}
	token := hex.EncodeToString(secret)
	accounts, tokens := filepath.Join(c.dir, "accounts.key"), filepath.Join(c.dir, "tokens.csv")
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := errors.Join(os.WriteFile(accounts, text, 0o600), os.WriteFile(tokens, fmt.Appendf(nil, "%s,admin,admin,system:masters\n", token), 0o600)); err != nil {
		return err
	}
	// The port is free now and was not in use a moment ago: the kernel hands out others first.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("find a port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return err
	}
	c.rest = &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", port), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1,
		WarningHandler: rest.NoWarnings{}}
	c.kubeconfig = filepath.Join(c.dir, "kubeconfig")
	if err := writeKubeconfig(c.kubeconfig, c.rest.Host, token); err != nil {
		return err
	}
	c.api, err = child.Start("kube-apiserver", filepath.Join(c.dir, "kube-apiserver.log"), nil, program,
		"--etcd-servers=unix://"+filepath.Join(c.dir, "client.sock"), fmt.Sprintf("--secure-port=%d", port), "--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1", "--cert-dir="+filepath.Join(c.dir, "certs"), "--token-auth-file="+tokens, "--authorization-mode=RBAC",
		"--allow-privileged=true", "--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+accounts,
		"--service-account-signing-key-file="+accounts, "--service-cluster-ip-range=10.96.0.0/16", "--disable-admission-plugins=ServiceAccount",
		"--endpoint-reconciler-type=none")
	return err
}

// writeKubeconfig writes how to reach a server with all rights.
func writeKubeconfig(path, host, token string) error {
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: host, InsecureSkipTLSVerify: true}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, path)
}

// define makes the custom resources known, as an operator does; not every scenario has one.
func (c *cluster) define(ctx context.Context) error {
	definitions, err := crds.Raw()
	if err != nil {
		return err
	}
	for _, text := range definitions {
		body, err := yaml.YAMLToJSON(text)
		if err != nil {
			return err
		}
		err = c.client.Urgent.Discovery().RESTClient().Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").
			SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("define a custom resource: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return c.client.WaitForKinds(ctx, readyTimeout, slog.New(slog.DiscardHandler), v2.Resource(v2.ResourceIdentities), v2.Resource(v2.ResourceEndpoints),
		v2.Resource(v2.ResourceNodes), v2alpha1.Resource(v2alpha1.ResourceEndpointSlices))
}

// transport returns a connection of its own to the server, for the agents that share it: HTTP/2,
// with as many streams as they need.
func (c *cluster) transport() *http.Transport {
	return &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 100, // the server is the harness's own
		DialContext: (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext, TLSHandshakeTimeout: time.Minute,
	}
}

// close ends all processes. What they wrote stays until the run's directory is removed.
func (c *cluster) close() error {
	var errs []error
	for _, p := range c.operators {
		errs = append(errs, p.Stop(time.Minute))
	}
	if c.api != nil {
		c.api.Kill() // in peace it would wait a minute for its watches
	}
	errs = append(errs, c.etcd.Stop(time.Minute))
	if !c.r.cfg.Keep {
		errs = append(errs, os.RemoveAll(filepath.Join(c.dir, "data")))
	}
	return errors.Join(errs...)
}

package sandbox

import (
	"io"

	"github.com/hawser-net/hawser/internal/sandbox/kube"
)

// Clusters finds clusters with Kubernetes on this machine by their names, for commands outside of
// this package that connect them. Out gets what there is to say of progress.
type Clusters struct{ Out io.Writer }

func (s Clusters) open(name string) (*kube.Cluster, error) {
	cfg := kube.Defaults()
	cfg.Name = name
	return kube.New(cfg, s.Out, false)
}

// Kubeconfig returns the path of the kubeconfig of a cluster; running is false if no cluster of
// this name is there.
func (s Clusters) Kubeconfig(name string) (path string, running bool, err error) {
	c, err := s.open(name)
	if err != nil {
		return "", false, err
	}
	return c.Kubeconfig(), kube.Exists(kube.Defaults().Root, name), nil
}

// Link connects the underlays of two clusters, so that their nodes reach each other.
func (s Clusters) Link(a, b string) error { return s.both(a, b, (*kube.Cluster).Link) }

// Unlink undoes Link, as far as the clusters are there.
func (s Clusters) Unlink(a, b string) error { return s.both(a, b, (*kube.Cluster).Unlink) }

func (s Clusters) both(a, b string, fn func(a, b *kube.Cluster) error) error {
	one, err := s.open(a)
	if err != nil {
		return err
	}
	other, err := s.open(b)
	if err != nil {
		return err
	}
	return fn(one, other)
}

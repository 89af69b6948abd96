package connect

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"
)

// files are the keys of the followed Secret for a cluster of this name.
func files(name string) (config, ca, cert, key string) {
	return name, name + "-ca.crt", name + ".crt", name + ".key"
}

// entry is the followed Secret's entry for a cluster, for agents that mount it at dir.
func entry(f Facts, dir string) (map[string][]byte, error) {
	config, ca, cert, key := files(f.Name)
	text := map[string]any{"endpoints": f.Access.Endpoints}
	out := map[string][]byte{}
	for _, file := range []struct {
		option, name string
		data         []byte
	}{{"trusted-ca-file", ca, f.Access.CA}, {"cert-file", cert, f.Access.Cert}, {"key-file", key, f.Access.Key}} {
		if len(file.data) > 0 {
			text[file.option] = path.Join(dir, file.name)
			out[file.name] = file.data
		}
	}
	data, err := yaml.Marshal(text)
	out[config] = data
	return out, err
}

// Follow has the agents of this cluster, which own describes, follow another one. What they were
// connected to one of that name before is replaced.
func (c *Cluster) Follow(ctx context.Context, own, other Facts) error {
	say, err := entry(other, own.Dir)
	if err != nil {
		return err
	}
	return c.change(ctx, other.Name, say)
}

// Forget has the agents of this cluster follow the cluster of this name no longer, if they do.
func (c *Cluster) Forget(ctx context.Context, name string) error {
	return c.change(ctx, name, nil)
}

// change replaces the entry for a cluster in the Secret that the agents follow. An empty Secret is
// deleted.
func (c *Cluster) change(ctx context.Context, name string, say map[string][]byte) error {
	secret, err := c.meshSecret(ctx)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", c.Called, err)
	}
	secrets := c.client.Kube.CoreV1().Secrets(c.namespace)
	changed := false
	// Another client may create or update it at the same time.
	err = retry.OnError(retry.DefaultBackoff, func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }, func() error {
		s, err := secrets.Get(ctx, secret, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return err
		}
		if missing {
			s = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret, Namespace: c.namespace}}
		}
		if changed = update(s, name, say); !changed {
			return nil
		}
		switch {
		case missing:
			_, err = secrets.Create(ctx, s, metav1.CreateOptions{})
		case len(s.Data) == 0:
			err = secrets.Delete(ctx, secret, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion}})
		default:
			_, err = secrets.Update(ctx, s, metav1.UpdateOptions{})
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("cluster %s: write Secret %s: %w", c.Called, secret, err)
	}
	if !changed {
		return nil
	}
	return c.nudge(ctx)
}

// update changes a Secret's entry for a cluster, and reports whether that is a change.
func update(s *corev1.Secret, name string, say map[string][]byte) bool {
	changed := false
	config, ca, cert, key := files(name)
	for _, k := range []string{config, ca, cert, key} {
		old, had := s.Data[k]
		now, has := say[k]
		switch {
		case has && (!had || !bytes.Equal(old, now)):
			if s.Data == nil {
				s.Data = map[string][]byte{}
			}
			s.Data[k] = now
		case had && !has:
			delete(s.Data, k)
		default:
			continue
		}
		changed = true
	}
	return changed
}

// touched is an annotation without a reader: a kubelet updates a Secret's files when a pod changes,
// and otherwise only every minute or two.
const touched = "hawser.net/clustermesh-changed"

func (c *Cluster) nudge(ctx context.Context) error {
	agents, err := c.agents(ctx)
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, touched, time.Now().UTC().Format(time.RFC3339Nano))
	for _, a := range agents {
		_, err := c.client.Kube.CoreV1().Pods(c.namespace).Patch(ctx, a.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) { // one that is gone will find the files
			return fmt.Errorf("cluster %s: agent %s: %w", c.Called, a.Name, err)
		}
	}
	return nil
}

// Package crds puts the definitions of the custom resources into a cluster, and keeps them up to
// date.
//
// It starts no goroutines and keeps nothing.
package crds

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	definitions "github.com/hawser-net/hawser/api/crds"
	"github.com/hawser-net/hawser/internal/operator/kube"
	"github.com/hawser-net/hawser/pkg/retry"
)

// minServer is the oldest server that the product works with.
var minServer = version.MajorMinor(1, 25)

// minServerReason is the reason, in an administrator's terms.
const minServerReason = "an older one does not check the rules that the definitions of the custom resources contain " +
	"(x-kubernetes-validations), so it would accept network policies that it cannot interpret"

const (
	pollInterval = 100 * time.Millisecond
	nagInterval  = 10 * time.Second
)

// CheckServer returns an error if the server is too old.
func CheckServer(info *apimachineryversion.Info) error {
	have, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return fmt.Errorf("the API server's version %q cannot be read: %w", info.GitVersion, err)
	}
	if have.LessThan(minServer) {
		return fmt.Errorf("the API server is of version %s; at least %s is needed: %s", info.GitVersion, minServer, minServerReason)
	}
	return nil
}

func schemaVersion(crd *apiextensionsv1.CustomResourceDefinition) (*version.Version, error) {
	text := crd.Labels[definitions.SchemaVersionLabel]
	v, err := version.ParseGeneric(text)
	if err != nil {
		return nil, fmt.Errorf("label %s: %q is not a version", definitions.SchemaVersionLabel, text)
	}
	return v, nil
}

// Register creates what is missing of defs in the cluster, replaces what is older, and waits until
// the server serves and lists all of them, so that c's mapper of kinds knows them. c must not read
// from a cache. It returns an error at once if the
// server refuses a definition for good; while the server is away it tries again until ctx ends.
func Register(ctx context.Context, c client.Client, defs []*apiextensionsv1.CustomResourceDefinition, log *slog.Logger) error {
	for _, def := range defs {
		if err := kube.Persist(ctx, log, "cannot write a definition, trying again", func() error { return register(ctx, c, def, log) }); err != nil {
			return fmt.Errorf("definition of %s: %w", def.Name, err)
		}
	}
	return wait(ctx, c, names(defs), log, func(name string) error { // it was deleted
		i := slices.IndexFunc(defs, func(d *apiextensionsv1.CustomResourceDefinition) bool { return d.Name == name })
		return register(ctx, c, defs[i], log)
	})
}

// register creates or updates one definition in the cluster.
func register(ctx context.Context, c client.Client, def *apiextensionsv1.CustomResourceDefinition, log *slog.Logger) error {
	want, err := schemaVersion(def)
	if err != nil {
		return err
	}
	have := &apiextensionsv1.CustomResourceDefinition{}
	err = c.Get(ctx, client.ObjectKeyFromObject(def), have)
	if apierrors.IsNotFound(err) {
		log.Info("creating the definition of a custom resource", "name", def.Name, "version", want)
		return c.Create(ctx, def.DeepCopy())
	}
	if err != nil {
		return err
	}
	if !have.DeletionTimestamp.IsZero() {
		return nil // it is created when it is gone, see Register
	}
	if old, err := schemaVersion(have); err == nil && !old.LessThan(want) {
		if want.LessThan(old) {
			log.Info("the definition of a custom resource is newer than this operator's; it stays", "name", def.Name, "version", old, "own", want)
		}
		return nil
	}
	log.Info("replacing the definition of a custom resource", "name", def.Name, "version", want, "old", have.Labels[definitions.SchemaVersionLabel])
	have.Spec = *def.Spec.DeepCopy()
	have.Labels = merge(have.Labels, def.Labels)
	have.Annotations = merge(have.Annotations, def.Annotations)
	return c.Update(ctx, have) // with the resource version that was read
}

func merge(base, over map[string]string) map[string]string {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, over)
	return out
}

func names(defs []*apiextensionsv1.CustomResourceDefinition) []string {
	var out []string
	for _, d := range defs {
		out = append(out, d.Name)
	}
	return out
}

// Names returns the names of definitions, as [Wait] takes them.
func Names(defs []*apiextensionsv1.CustomResourceDefinition) []string { return names(defs) }

// Wait returns when the server serves and lists all definitions of these names. While it waits it
// periodically logs what is missing.
func Wait(ctx context.Context, c client.Client, names []string, log *slog.Logger) error {
	return wait(ctx, c, names, log, func(string) error { return nil })
}

// wait is Wait that calls gone for definitions that do not exist.
func wait(ctx context.Context, c client.Client, names []string, log *slog.Logger, gone func(name string) error) error {
	nag := time.Now().Add(nagInterval)
	missing := slices.Clone(names)
	for {
		var why []string
		var rest []string
		for _, name := range missing {
			crd := &apiextensionsv1.CustomResourceDefinition{}
			err := c.Get(ctx, client.ObjectKey{Name: name}, crd)
			state, fatal := "", error(nil)
			if err != nil {
				state = err.Error()
				if apierrors.IsNotFound(err) {
					if err := gone(name); err != nil {
						state = err.Error()
					}
				}
			} else {
				state, fatal = serving(crd)
				if state == "" && fatal == nil {
					state = listed(c.RESTMapper(), crd)
				}
			}
			if fatal != nil {
				return fatal
			}
			if state != "" {
				rest, why = append(rest, name), append(why, name+": "+state)
			}
		}
		if missing = rest; len(missing) == 0 {
			return nil
		}
		if time.Now().After(nag) {
			log.Warn("waiting for definitions of custom resources", "missing", strings.Join(why, "; "))
			nag = time.Now().Add(nagInterval)
		}
		if !retry.Sleep(ctx, pollInterval) {
			return fmt.Errorf("waiting for definitions of custom resources: %w: %s", context.Cause(ctx), strings.Join(why, "; "))
		}
	}
}

// serving returns "" if the server serves the definition, and else why not. fatal is set if that
// will not change.
func serving(crd *apiextensionsv1.CustomResourceDefinition) (state string, fatal error) {
	state = "the server has not looked at it yet"
	for _, c := range crd.Status.Conditions {
		switch {
		case c.Type == apiextensionsv1.NamesAccepted && c.Status == apiextensionsv1.ConditionFalse:
			return "", fmt.Errorf("the server does not accept the names of %s: %s; remove the definition that has them", crd.Name, c.Message)
		case c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue:
			state = ""
		case c.Type == apiextensionsv1.Established:
			state = c.Message
		}
	}
	if !crd.DeletionTimestamp.IsZero() {
		state = "it is being deleted"
	}
	return state, nil
}

// listed returns "" if the server lists the kind among those that it serves, and else why not. It
// does so a moment after it serves the kind. A controller that looks before finds that there is no
// such kind.
func listed(mapper meta.RESTMapper, crd *apiextensionsv1.CustomResourceDefinition) string {
	for _, v := range crd.Spec.Versions {
		if !v.Served {
			continue
		}
		if _, err := mapper.RESTMapping(schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}, v.Name); err != nil {
			return err.Error()
		}
	}
	return ""
}

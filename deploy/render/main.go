// Command render writes what Helm would install from a chart, as one file of manifests for `kubectl
// apply -f`.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	release "helm.sh/helm/v4/pkg/release/v1/util"
	"sigs.k8s.io/yaml"
)

func main() {
	dir := flag.String("chart", "", "directory of the chart")
	values := flag.String("values", "", "file of values that replace those of the chart")
	out := flag.String("o", "", "file to write; standard output by default")
	flag.Parse()
	if err := run(*dir, *values, *out); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func run(dir, values, out string) error {
	text, err := render(dir, values)
	if err != nil {
		return err
	}
	if out == "" {
		_, err := io.WriteString(os.Stdout, text)
		return err
	}
	return os.WriteFile(out, []byte(text), 0o644)
}

// render returns the objects of the chart in the order in which they are to be created.
func render(dir, values string) (string, error) {
	chart, err := loader.Load(dir)
	if err != nil {
		return "", err
	}
	set := map[string]any{}
	if values != "" {
		data, err := os.ReadFile(values)
		if err != nil {
			return "", err
		}
		if err := yaml.Unmarshal(data, &set); err != nil {
			return "", fmt.Errorf("%s: %w", values, err)
		}
	}
	options := common.ReleaseOptions{Name: "hawser", Namespace: "kube-system", Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, set, options, nil)
	if err != nil {
		return "", err
	}
	files, err := engine.Engine{Strict: true}.Render(chart, all)
	if err != nil {
		return "", err
	}
	for name := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			delete(files, name)
		}
	}
	_, manifests, err := release.SortManifests(files, nil, release.InstallOrder)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	with := "its default values"
	if values != "" {
		with = "values of " + filepath.Base(values)
	}
	fmt.Fprintf(&b, "# Generated from the chart in deploy/helm/hawser with %s. DO NOT EDIT.\n", with)
	for _, m := range manifests {
		fmt.Fprintf(&b, "---\n%s\n", strings.TrimSpace(m.Content))
	}
	// What helm marks as its own is not.
	return strings.ReplaceAll(b.String(), "app.kubernetes.io/managed-by: Helm\n", "app.kubernetes.io/managed-by: kubectl\n"), nil
}

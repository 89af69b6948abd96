// Package image makes container images from files, without a registry and without an engine: one
// layer each, in an OCI image layout that is a tar file, as containerd imports it.
//
// The same files make the same bytes: times in the layer are zero and its entries are sorted.
//
// The package keeps no state and starts no goroutine.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Image is one image in the making. The methods that add files remember where they are; Write reads
// them.
type Image struct {
	// Names are what the image is called, each with a tag.
	Names []string
	// Entrypoint and Cmd are what a container of it runs.
	Entrypoint, Cmd []string
	// Env are further environment variables, as K=V.
	Env []string

	entries map[string]entry
}

type entry struct {
	kind    byte // as in the tar's header
	mode    int64
	source  string // a file
	content []byte // if source is empty
	link    string
}

// Add puts a file of this machine at dst.
func (m *Image) Add(dst, source string) {
	m.put(dst, entry{kind: tar.TypeReg, mode: -1, source: source})
}

// Text puts a small file with this content at dst.
func (m *Image) Text(dst, content string) {
	m.put(dst, entry{kind: tar.TypeReg, mode: 0o644, content: []byte(content)})
}

// Link makes dst a symbolic link.
func (m *Image) Link(dst, target string) {
	m.put(dst, entry{kind: tar.TypeSymlink, mode: 0o777, link: target})
}

// Dir makes a directory. Those above a file exist by themselves.
func (m *Image) Dir(dst string, mode int64) { m.put(dst, entry{kind: tar.TypeDir, mode: mode}) }

func (m *Image) put(dst string, e entry) {
	if m.entries == nil {
		m.entries = map[string]entry{}
	}
	dst = strings.TrimPrefix(path.Clean("/"+dst), "/")
	m.entries[dst] = e
	for dir := path.Dir(dst); dir != "."; dir = path.Dir(dir) {
		if _, ok := m.entries[dir]; !ok {
			m.entries[dir] = entry{kind: tar.TypeDir, mode: 0o755}
		}
	}
}

// AddProgram puts a program at dst, with every shared library it needs at the library's usual
// place. Each of roots is a directory whose files look as if they were in /, such as one that
// packages were unpacked into; the machine's own / is searched last.
func (m *Image) AddProgram(dst, source string, roots ...string) error {
	m.Add(dst, source)
	todo, seen := []string{source}, map[string]bool{}
	for len(todo) > 0 {
		file := todo[0]
		todo = todo[1:]
		needs, err := libraries(file)
		if err != nil {
			return err
		}
		for _, lib := range needs {
			if seen[lib] {
				continue
			}
			seen[lib] = true
			at, real, err := locate(lib, append(slices.Clone(roots), "/"))
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			m.Add(at, real)
			todo = append(todo, real)
		}
	}
	return nil
}

// libraries lists what the dynamic linker loads for an ELF file: names, and the path of the linker
// itself. A static program needs nothing.
func libraries(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	defer f.Close()
	needs, err := f.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			data, err := io.ReadAll(io.LimitReader(p.Open(), 4096))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			needs = append(needs, string(bytes.TrimRight(data, "\x00")))
		}
	}
	return needs, nil
}

// locate finds a library: where it is to be in the image, and the file on this machine.
func locate(lib string, roots []string) (at, real string, err error) {
	places := []string{""}
	if !strings.HasPrefix(lib, "/") {
		triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
		places = []string{"/lib/" + triplet, "/usr/lib/" + triplet, "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"}
	}
	for _, root := range roots {
		for _, place := range places {
			at := path.Join("/", place, lib)
			if real, err := filepath.EvalSymlinks(filepath.Join(root, at)); err == nil {
				return at, real, nil
			}
		}
	}
	return "", "", fmt.Errorf("the library %s is not on this machine", lib)
}

// WriteFile writes the image to a file, which appears when it is whole.
func (m *Image) WriteFile(file string) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	err = m.Write(tmp)
	if err = errors.Join(err, tmp.Close()); err != nil {
		return fmt.Errorf("image %s: %w", strings.Join(m.Names, ", "), err)
	}
	return os.Rename(tmp.Name(), file)
}

// Write writes the image as a tar of an OCI image layout. It reads the files twice.
func (m *Image) Write(w io.Writer) error {
	if len(m.Names) == 0 {
		return errors.New("the image has no name")
	}
	sum, size := sha256.New(), new(counter)
	if err := m.layer(io.MultiWriter(sum, size)); err != nil {
		return err
	}
	layer := descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: digest(sum.Sum(nil)), Size: int64(*size)}
	config, err := json.Marshal(m.config(layer.Digest))
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "layers": []descriptor{layer},
		"config": describe("application/vnd.oci.image.config.v1+json", config),
	})
	if err != nil {
		return err
	}
	var manifests []descriptor
	for _, name := range m.Names {
		d := describe(manifestType, manifest)
		d.Platform = map[string]string{"architecture": runtime.GOARCH, "os": "linux"}
		d.Annotations = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name[strings.LastIndexByte(name, ':')+1:]}
		manifests = append(manifests, d)
	}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests})
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	small := func(name string, data []byte) error {
		if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), Format: tar.FormatGNU}); err != nil {
			return err
		}
		_, err := t.Write(data)
		return err
	}
	blob := func(digest string) string { return "blobs/sha256/" + strings.TrimPrefix(digest, "sha256:") }
	err = errors.Join(small("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)), small("index.json", index),
		small(blob(describe("", config).Digest), config), small(blob(describe("", manifest).Digest), manifest),
		t.WriteHeader(&tar.Header{Name: blob(layer.Digest), Mode: 0o644, Size: layer.Size, Format: tar.FormatGNU}))
	if err != nil {
		return err
	}
	// A file that changed since the first reading would make another layer than the one that was
	// promised.
	again := sha256.New()
	if err := m.layer(io.MultiWriter(t, again)); err != nil {
		return err
	}
	if digest(again.Sum(nil)) != layer.Digest {
		return errors.New("a file changed while it was read: try again")
	}
	return t.Close()
}

const manifestType = "application/vnd.oci.image.manifest.v1+json"

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func describe(mediaType string, data []byte) descriptor {
	sum := sha256.Sum256(data)
	return descriptor{MediaType: mediaType, Digest: digest(sum[:]), Size: int64(len(data))}
}

func digest(sum []byte) string { return "sha256:" + hex.EncodeToString(sum) }

func (m *Image) config(layer string) map[string]any {
	config := map[string]any{"Env": append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, m.Env...), "WorkingDir": "/"}
	if m.Entrypoint != nil {
		config["Entrypoint"] = m.Entrypoint
	}
	if m.Cmd != nil {
		config["Cmd"] = m.Cmd
	}
	return map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": "1970-01-01T00:00:00Z", "config": config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer}},
	}
}

func (m *Image) layer(w io.Writer) error {
	t := tar.NewWriter(w)
	for _, dst := range slices.Sorted(maps.Keys(m.entries)) {
		if err := m.entries[dst].write(t, dst); err != nil {
			return err
		}
	}
	return t.Close()
}

func (e entry) write(t *tar.Writer, dst string) error {
	h := &tar.Header{Typeflag: e.kind, Name: dst, Mode: e.mode, Linkname: e.link, Size: int64(len(e.content)), Format: tar.FormatGNU}
	if e.kind == tar.TypeDir {
		h.Name += "/"
	}
	var body io.Reader = bytes.NewReader(e.content)
	if e.source != "" {
		f, err := os.Open(e.source)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a file", e.source)
		}
		h.Size, h.Mode, body = info.Size(), int64(info.Mode().Perm()|0o444), f
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	if _, err := io.Copy(t, body); err != nil {
		return fmt.Errorf("%s: %w", dst, err)
	}
	return nil
}

// counter counts what is written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

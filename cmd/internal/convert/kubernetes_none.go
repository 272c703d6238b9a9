//go:build nokubernetes

package convert

import "errors"

var errNoKubernetes = errors.New("this svcproxy was built without Kubernetes (-tags nokubernetes), and cannot read its objects; use one that was not")

func readKubernetes(Input) (*Result, error) { return nil, errNoKubernetes }

func readCilium(Input) (*Result, error) { return nil, errNoKubernetes }

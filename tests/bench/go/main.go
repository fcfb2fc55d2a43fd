// An extender that only decodes and encodes with the Kubernetes types: the yardstick for full nodes.
package main

import (
	"encoding/json"
	"net/http"
	"os"

	extender "k8s.io/kube-scheduler/extender/v1"
)

func main() {
	http.HandleFunc("/filter", func(w http.ResponseWriter, r *http.Request) {
		var args extender.ExtenderArgs
		if err := json.NewDecoder(r.Body).Decode(&args); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		result := extender.ExtenderFilterResult{Nodes: args.Nodes, NodeNames: args.NodeNames}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(&result); err != nil {
			panic(err)
		}
	})
	panic(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}

// Search runs in a Worker, which browsers refuse to pages that are opened from a folder (file://).
// There, this Worker runs its script in a hidden frame instead. Zensical would load such a script
// from another site.
if (location.protocol === "file:") {
  window.Worker = class {
    #waiting = [];
    #ready = false;

    constructor(url) {
      this.onmessage = this.onerror = this.onmessageerror = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const scope = this.frame.contentWindow;
      scope.postMessage = (data) => setTimeout(() => this.onmessage?.({ data }));
      const script = scope.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => {
        this.#ready = true;
        this.#waiting.splice(0).forEach((data) => this.postMessage(data));
      };
      script.onerror = () => this.onerror?.(new Event("error", { cancelable: true }));
      scope.document.body.append(script);
    }

    postMessage(data) {
      if (this.#ready) this.frame.contentWindow?.onmessage?.({ data });
      else this.#waiting.push(data);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
